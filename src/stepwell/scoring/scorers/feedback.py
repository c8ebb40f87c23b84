"""What people said, as rewards."""

from collections import defaultdict
from typing import Literal

from stepwell.curation.feedback import FeedbackRule
from stepwell.scoring.base import Score, Scorer, ScorerConfig
from stepwell.types import Trajectory


class FeedbackConfig(ScorerConfig):
    """The newest feedback on the trajectory and on each of its steps, as a rule says. The reward is that of what the
    feedback is about, as at the gateway's door."""

    use: Literal["feedback"] = "feedback"
    """Names the scorer."""
    rule: FeedbackRule = FeedbackRule()
    """What a statement is worth."""

    def build(self) -> Scorer:
        """See `ScorerConfig`."""
        return _Feedback(self.name, self.rule)


class _Feedback:
    def __init__(self, part: str, rule: FeedbackRule) -> None:
        self._part = part
        self._rule = rule

    async def score(self, trajectory: Trajectory) -> Score | None:
        """See `Scorer`."""
        parts: dict[str, float] = {}
        steps: dict[str, dict[str, float]] = defaultdict(dict)
        for note in trajectory.annotations:
            value = self._rule.reward(note) if note.kind == "feedback" else None
            if value is not None:
                (steps[note.target_id] if note.target == "step" else parts)[self._part] = value
        return Score(parts=parts, steps=steps) if parts or steps else None

    async def aclose(self) -> None:
        """See `Scorer`."""
