"""Where a forked trajectory comes from: the recorded steps that its agent is answered with before it acts anew.

A fork is a trajectory of a group that names an origin (`GroupInfo.origin_id`) and one of its steps (`origin_index`).
Whoever plays it, an agent that nobody changed too, asks what the origin's agent asked: each of its prompts is compared,
id for id, with a recorded one, and answered from the record. From the step of the origin on the policy samples, so
siblings differ in what they did there, and in nothing that came before.
"""

from collections.abc import Sequence

from stepwell.errors import ForkRefused
from stepwell.prefix_tree.tree import common_prefix
from stepwell.types import Ids, Step


class Origin:
    """The past of one fork. Used from one event loop only."""

    def __init__(self, steps: Sequence[Step], index: int) -> None:
        """`steps` of the origin, which the fork takes anew from `index` on."""
        own = [step for step in steps if not step.side]
        self.past = tuple(step for step in own if step.index < index)
        """What is answered from the record."""
        self.index = index
        self._here = next((step for step in own if step.index == index), None)
        self._waiting = list(self.past)
        self._live = False

    def answer(self, prompt_ids: Ids) -> Step | None:
        """The recorded step that answers a prompt; None: it is the policy's turn.

        An agent that knows its past may begin where the fork does. A call that was answered may come again.

        Raises:
            ForkRefused: the prompt is none of those that were recorded.
        """
        if self._live:
            return None
        found = next((step for step in (*self._waiting, *self.past) if _same(step.prompt_ids, prompt_ids)), None)
        if found is not None:
            self._waiting = [step for step in self._waiting if step is not found]
            return found
        if self._here is None and not self._waiting:
            self._live = True
            return None
        if self._here is not None and _same(self._here.prompt_ids, prompt_ids):
            self._live = True
            return None
        raise _differs(self._waiting[0] if self._waiting else self._here, prompt_ids)


def _same(left: Ids, right: Ids) -> bool:
    return len(left) == len(right) and common_prefix(left, right) == len(left)


def _differs(step: Step | None, prompt_ids: Ids) -> ForkRefused:
    assert step is not None  # there is nothing to differ from otherwise
    at = common_prefix(step.prompt_ids, prompt_ids)
    recorded, asked = (ids[at : at + 1].tolist() or ["nothing"] for ids in (step.prompt_ids, prompt_ids))
    return ForkRefused(
        f"the agent did not ask what was asked at step {step.index} of trajectory {step.trajectory_id}: the record has "
        f"{recorded[0]} as prompt token {at}, and the agent sent {asked[0]}. An agent that is forked must do the same "
        "again: fix its clock, random numbers and tools"
    )
