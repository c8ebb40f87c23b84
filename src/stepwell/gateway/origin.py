"""Where a forked trajectory comes from: the recorded steps that its agent is answered with before it acts anew.

A fork is a trajectory of a group that names an origin (`GroupInfo.origin_id`) and one of its steps (`origin_index`).
Whoever plays it, an agent that nobody changed too, asks what the origin's agent asked: each of its prompts is compared,
id for id, with a recorded one, and answered from the record. From the step of the origin on the policy samples, so
siblings differ in what they did there, and in nothing that came before.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from stepwell.errors import ForkRefused, NotFound
from stepwell.pool.base import Pool
from stepwell.prefix_tree.tree import common_prefix
from stepwell.types import FORK, Ids, Step, Trajectory, TrajectoryInfo

CHOICE_MARK: Final = "."
"""Between the id of a call's first step and the number of a further choice: one call's answers are told by it."""
_BEFORE: Final = 12
_AFTER: Final = 24
"""Tokens of a difference that are shown."""
_KEPT: Final = 4_000_000
"""Tokens of origins that are kept, four bytes each and as many for their log-probabilities."""

_Call = tuple[Step, ...]
"""The answers of one call: a step for each choice, in order."""


class Origin:
    """The past of one fork. Used from one event loop only."""

    def __init__(
        self, steps: Sequence[Step], index: int, text: Callable[[Ids], str] = str, *, known: bool = False
    ) -> None:
        """`steps` of the origin, which the fork takes anew from `index` on; `text` shows ids to people.

        With `known` the agent knows its past and begins at the fork: none of its prompts is answered from the record,
        even if it is the same as an earlier one.

        Raises:
            ForkRefused: there is no such step, and it is not the next one either.
        """
        own = [step for step in steps if not step.side]
        after = own[-1].index + 1 if own else 0
        if index != after and index not in (step.index for step in own):
            raise ForkRefused(
                f"a fork is to take step {index} anew, but its origin has none of that index: "
                f"name one that it has, or {after}, behind its last"
            )
        self._here = next((call for call in _calls(own) if index in (step.index for step in call)), ())
        here = {step.id for step in self._here}
        self.past = tuple(step for step in own if step.index < index and step.id not in here)
        """What was asked and answered before."""
        self.index = index
        past = [] if known else _calls(self.past)
        self._cut = [call for call in past if _cut_off(call)]
        self._waiting = [call for call in past if not _cut_off(call)]
        self._answered: list[_Call] = []
        self._live = known
        self._text = text

    def answer(self, prompt_ids: Ids, choices: int = 1) -> tuple[Step, ...]:
        """The recorded steps that answer a prompt, one per choice; none: it is the policy's turn.

        Calls may come in any order, as those of several subagents do; each is answered once, also when another one has
        reached the fork. Until then an agent that was started again may begin from the start. One that knows its past
        may begin where the fork does. What was cut off is no answer: the call that came in its place is.

        Raises:
            ForkRefused: the prompt is none of those that were recorded.
        """
        found = _find(self._waiting, prompt_ids, choices)
        if found:
            self._waiting = [call for call in self._waiting if call is not found]
            self._answered.append(found)
            return found
        if self._live or self._reached(prompt_ids):
            self._live = True
            return ()
        again = _find(self._answered, prompt_ids, choices)
        if not again:
            raise ForkRefused(self._difference(prompt_ids, choices))
        return again

    def _reached(self, prompt_ids: Ids) -> bool:
        return _same(self._here[0].prompt_ids, prompt_ids) if self._here else not self._waiting

    def _difference(self, prompt_ids: Ids, choices: int) -> str:
        """Where the prompt departs from the recorded one that it has most in common with."""
        left = [*self._waiting, self._here] if self._here else self._waiting
        step = max((call[0] for call in left), key=lambda step: common_prefix(step.prompt_ids, prompt_ids))
        at = common_prefix(step.prompt_ids, prompt_ids)
        said = f"the agent did not ask what was asked at step {step.index} of trajectory {step.trajectory_id}: "
        if _same(step.prompt_ids, prompt_ids):
            return f"{said}it wants {choices} answers, and the record has another number of them"
        if any(_same(call[0].prompt_ids, prompt_ids) for call in self._cut):
            return f"{said}it asked again for an answer that was cut off, which cannot be repeated"
        recorded, asked = (self._shown(ids, at) for ids in (step.prompt_ids, prompt_ids))
        before = self._text(prompt_ids[max(at - _BEFORE, 0) : at])
        return (
            f"{said}behind {before!r} the record has {recorded} as prompt token {at}, and the agent sent {asked}. "
            "An agent that is forked must do the same again: fix its clock, random numbers and tools"
        )

    def _shown(self, ids: Ids, at: int) -> str:
        return repr(self._text(ids[at : at + _AFTER])) if at < len(ids) else "nothing"


class Pasts:
    """Finds in a pool where forks come from. What has ended is kept a while, as siblings come together. Thread-safe."""

    def __init__(self, pool: Pool, *, tokens: int = _KEPT) -> None:
        """Keep at most so many tokens of prompts and responses."""
        self._pool = pool
        self._tokens = tokens
        self._held = 0
        self._kept: OrderedDict[str, Trajectory] = OrderedDict()
        self._lock = threading.Lock()

    def origin_of(self, info: TrajectoryInfo, text: Callable[[Ids], str] = str) -> Origin | None:
        """The past of a trajectory if it is a fork; of a fork of a fork, the past of that comes first. May block.

        Raises:
            ForkRefused: an origin is gone, or has no such step.
        """
        forked = self._forked_from(info)
        if forked is None:
            return None
        (origin, index), known = forked, {info.id}
        steps = list(origin.steps)
        while (forked := self._forked_from(origin.info)) is not None:
            known.add(origin.info.id)
            origin, first = forked
            if origin.info.id in known:
                raise ForkRefused(f"trajectory {info.id!r} is a fork of itself, by way of {origin.info.id!r}")
            steps[:0] = [step for step in origin.steps if step.index < first]
        return Origin(steps, index, text, known=info.source == FORK)

    def _forked_from(self, info: TrajectoryInfo) -> tuple[Trajectory, int] | None:
        """The origin of a fork, and the step of it that is taken anew."""
        group = None if info.group_id is None else self._pool.group_info(info.group_id)
        if group is None or group.origin_index is None:
            return None
        try:
            return self._trajectory(group.origin_id), group.origin_index
        except NotFound as error:
            raise ForkRefused(f"trajectory {info.id!r} is a fork of one that is gone: {error}") from error

    def _trajectory(self, trajectory_id: str) -> Trajectory:
        with self._lock:
            known = self._kept.get(trajectory_id)
            if known is not None:
                self._kept.move_to_end(trajectory_id)
                return known
        found = self._pool.trajectory(trajectory_id)
        if found.status != "open":  # it gets no step any more
            self._keep(found)
        return found

    def _keep(self, found: Trajectory) -> None:
        with self._lock:
            if found.info.id not in self._kept:
                self._kept[found.info.id] = found
                self._held += _size(found)
            while self._held > self._tokens:
                _, oldest = self._kept.popitem(last=False)
                self._held -= _size(oldest)


def _size(trajectory: Trajectory) -> int:
    return sum(len(step.prompt_ids) + len(step.response_ids) for step in trajectory.steps)


def in_past_of(pool: Pool, fork_id: str, step: Step) -> bool:
    """Whether a step is one of those that a trajectory has from its origins. May block."""
    try:
        origin = Pasts(pool).origin_of(pool.trajectory(fork_id).info)
    except (NotFound, ForkRefused):
        return False
    return origin is not None and any(known.id == step.id for known in origin.past)


def _calls(steps: Sequence[Step]) -> list[_Call]:
    """The steps by the calls that they answer, in the order of their first ones."""
    calls: dict[tuple[str, bytes], list[Step]] = {}
    for step in steps:
        first, mark, _ = step.id.rpartition(CHOICE_MARK)
        calls.setdefault((first if mark else step.id, step.prompt_ids.tobytes()), []).append(step)
    return [tuple(sorted(call, key=lambda step: step.id)) for call in calls.values()]


def _cut_off(call: _Call) -> bool:
    return any(step.finish_reason == "abort" for step in call)


def _find(calls: Sequence[_Call], prompt_ids: Ids, choices: int) -> _Call:
    found = (call for call in calls if len(call) == choices and _same(call[0].prompt_ids, prompt_ids))
    return next(found, ())


def _same(left: Ids, right: Ids) -> bool:
    return bool(np.array_equal(left, right))
