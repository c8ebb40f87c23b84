"""The final answer is one of the references, word for word."""

from pathlib import Path
from typing import Literal

from stepwell.scoring.answers import exact_match
from stepwell.scoring.base import Scorer, ScorerConfig
from stepwell.scoring.references import References, compared


class ExactMatchConfig(ScorerConfig):
    """1 if the final answer equals a reference, case, punctuation and articles aside, as SQuAD defines it; else 0."""

    use: Literal["exact_match"] = "exact_match"
    """Names the scorer."""
    references: Path
    """JSONL file of `{"task_id": …, "answer": …}` or `{"task_id": …, "answers": […]}`."""

    def build(self) -> Scorer:
        """See `ScorerConfig`."""
        return compared(self.name, References.read(self.references), exact_match)
