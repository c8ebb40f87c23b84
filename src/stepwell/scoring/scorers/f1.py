"""How many words the final answer shares with a reference."""

from pathlib import Path
from typing import Literal

from stepwell.scoring.answers import f1
from stepwell.scoring.base import Scorer, ScorerConfig
from stepwell.scoring.references import References, compared


class F1Config(ScorerConfig):
    """The best token F1, in 0..1, of the final answer and a reference, as SQuAD and HotpotQA define it."""

    use: Literal["f1"] = "f1"
    """Names the scorer."""
    references: Path
    """See `ExactMatchConfig.references`."""

    def build(self) -> Scorer:
        """See `ScorerConfig`."""
        return compared(self.name, References.read(self.references), f1)
