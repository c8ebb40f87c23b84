"""What people's feedback is worth: one rule, at the door when it arrives and afterwards when a pool is rescored."""

from typing import Annotated

from pydantic import Field, model_validator

from stepwell.config import Config
from stepwell.types import LARGEST_REWARD, Annotation

Worth = Annotated[float, Field(ge=-LARGEST_REWARD, le=LARGEST_REWARD)]
"""What a reward may be."""


class FeedbackRule(Config):
    """The reward that a statement of a person becomes; None: it becomes none."""

    thumbs_up: Worth | None = 1.0
    """For a thumb up."""
    thumbs_down: Worth | None = -1.0
    """For a thumb down."""
    score_range: tuple[float, float] | None = None
    """The scale of scores, such as [1, 5], which is mapped to `reward_range`; None: a score is the reward itself."""
    reward_range: tuple[Worth, Worth] = (-1.0, 1.0)
    """What the ends of `score_range` become; scores beyond them become no more."""
    edit: Worth | None = None
    """For an edited answer, which says that the one given was not good enough."""
    comment: Worth | None = None
    """For a comment without thumbs or a score."""

    @model_validator(mode="after")
    def _is_a_range(self) -> "FeedbackRule":
        if self.score_range is not None and not self.score_range[0] < self.score_range[1]:
            raise ValueError("score_range must go from a lower to a higher number")
        return self

    def reward(self, note: Annotation) -> float | None:
        """What `note`, which is feedback, is worth."""
        match note.name:
            case "thumbs" if note.value is not None:
                return self.thumbs_up if note.value > 0 else self.thumbs_down
            case "score" if note.value is not None:
                return self._of_score(note.value)
            case "edit":
                return self.edit
            case "comment":
                return self.comment
            case _:
                return None

    def _of_score(self, score: float) -> float:
        if self.score_range is None:
            return score
        lowest, highest = self.score_range
        share = min(max((score - lowest) / (highest - lowest), 0.0), 1.0)
        return self.reward_range[0] * (1 - share) + self.reward_range[1] * share
