"""What items are checked against: the model that is served here, and the pool."""

from dataclasses import dataclass
from typing import Final

from stepwell.curation.feedback import FeedbackRule
from stepwell.errors import InvalidRecord, NotFound
from stepwell.pool.base import Pool
from stepwell.types import Annotation, Step

_ROUNDING: Final = 1e-4
"""How far above 0 a log-probability may be, for having been added up in low precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Its methods may block."""

    pool: Pool
    model: str
    """Name of the model that is served."""
    vocabulary: int
    """Its token ids are below this."""
    feedback: FeedbackRule | None = None
    """What feedback is worth; None: only what says so itself is a reward."""

    def check(self, step: Step) -> Step:
        """The step itself, if no later call in its trajectory can stumble over it. Raises InvalidRecord."""
        if len(step.logprobs) and step.logprobs.max() > _ROUNDING:
            raise InvalidRecord(
                f"Step.logprobs holds {step.logprobs.max():g}, but the logarithm of a probability is at most 0: "
                "send natural logarithms, not probabilities or their negatives"
            )
        if step.model != self.model:
            return step
        largest = max(int(ids.max()) for ids in (step.prompt_ids, step.response_ids) if len(ids))
        if largest >= self.vocabulary:
            raise InvalidRecord(
                f"Step holds the token id {largest}, but the vocabulary of {step.model!r} has {self.vocabulary}: "
                "name the model whose tokenizer made the ids"
            )
        return step

    def knows(self, note: Annotation) -> bool:
        """Whether an annotation of that id is stored already about the same step or trajectory."""
        try:
            trajectory = note.target_id if note.target == "trajectory" else self.pool.step(note.target_id).trajectory_id
            return any(known.id == note.id for known in self.pool.notes(trajectory))
        except NotFound:
            return False

    def last_step(self, trajectory_id: str) -> str:
        """Id of the newest step of the agent's own work in a trajectory. Raises NotFound."""
        steps = [step.id for step in self.pool.trajectory(trajectory_id).steps if not step.side]
        if not steps:
            raise NotFound(f"trajectory {trajectory_id!r} has no answer yet that could be edited")
        return steps[-1]
