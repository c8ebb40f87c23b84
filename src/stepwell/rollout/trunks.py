"""Trunks as the pool keeps them, so that a process that begins after another one goes on with what that one left.

A set of trunks is one note, at the first of them: of each trunk its seed, the steps of its turns, and a digest of the
state before each. Which turns were taken anew, and by which version, follows from the groups that name a trunk as their
origin. The states themselves are kept nowhere. They are made once more by the code that made them, with the recorded
answers in place of the policy's, and compared by their digests.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

import msgspec

from stepwell.algorithms.base import Siblings
from stepwell.curation.selection import Selection
from stepwell.errors import ContextOverflow, InvalidRequest
from stepwell.pool.base import GroupSummary, Pool
from stepwell.rendering.messages import Message, Tool
from stepwell.rendering.wire import answer_from_json
from stepwell.rollout.agent import Action, Agent
from stepwell.rollout.run import ALIKE, EnvironmentPlayer, Fork, Nowhere, Player, Start
from stepwell.types import Annotation, Step, Trajectory, TrajectoryInfo

NOTE: Final = "trunks"
"""Name of the notes that hold a set of trunks."""
_PAGE: Final = 100
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Trunk:
    """A trajectory that others are forked from."""

    trajectory_id: str
    task_id: str
    forks: tuple[Fork, ...]
    """The state before each of its turns."""


class Kept(msgspec.Struct, frozen=True):
    """What the pool keeps of a trunk beside its steps."""

    trajectory_id: str
    task_id: str
    seed: int
    """Of its environment."""
    turns: list[tuple[int, str]]
    """(index of the step, digest of the state before it) of each turn; no digest where a gateway makes the forks."""


class _Set(msgspec.Struct):
    """The text of a note."""

    channel: str
    trunks: list[Kept]


_SETS: Final = msgspec.json.Decoder(_Set)


def kept(channel: str, trunks: Sequence[Trunk]) -> Annotation:
    """The note that holds a set of trunks, at least one, in their order."""
    text = msgspec.json.encode(_Set(channel, [_kept(trunk) for trunk in trunks])).decode()
    return Annotation(target="trajectory", target_id=trunks[0].trajectory_id, kind="note", name=NOTE, text=text)


def _kept(trunk: Trunk) -> Kept:
    seed = next((fork.boundary.seed for fork in trunk.forks if fork.boundary is not None), 0)
    return Kept(trunk.trajectory_id, trunk.task_id, seed, [(fork.step, _digest(fork)) for fork in trunk.forks])


def _digest(fork: Fork) -> str:
    """Equal for equal states: of what the policy was shown, and of what the environment made of the last action."""
    if fork.boundary is None:
        return ""
    past = fork.boundary.past
    told = repr((fork.view, past[-1].digest if past else b""))
    return hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Left:
    """What is left of the newest set of trunks that was begun."""

    trunks: tuple[Kept, ...]
    turns: tuple[int, ...]
    """That are still to be taken anew, in order."""
    begun: frozenset[tuple[str, int]]
    """(trunk, turn) of them that the current version has taken anew already: it was interrupted within a turn."""
    ahead: tuple[Kept, ...] = ()
    """The trunks after these, where they were played already."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Finds in a pool what earlier processes left."""

    pool: Pool
    version: Callable[[], int]
    """The policy's, now. What later ones did was lost with their weights, and is done anew."""

    def left(self, channel: str, plan: Siblings) -> Left | None:
        """What is left of the newest trunks of a channel; None if nothing is. Blocks."""
        newest, *older = [self._left_of(own, plan) for own in islice(self._sets(channel), 1 + plan.ahead)] or [None]
        before = older[0] if older else None
        if newest is None or before is None or newest.begun or len(newest.turns) < _turns(newest.trunks):
            return newest
        return replace(before, ahead=newest.trunks)

    def _left_of(self, own: "_Own", plan: Siblings) -> Left | None:
        trunks, now, taken = own.trunks, self.version(), self._taken(own)
        places = range(_turns(trunks))
        turns = []
        for turn in reversed(places) if plan.order == "reverse" else places:
            there = [(trunk.trajectory_id, trunk.turns[turn][0]) for trunk in trunks if len(trunk.turns) > turn]
            if not _over([taken.get(place) for place in there], now):
                turns.append(turn)
        begun = {(trunk.trajectory_id, turn) for trunk in trunks for turn in turns if _has(trunk, turn, taken)}
        return Left(trunks, tuple(turns), frozenset(begun)) if turns else None

    def _sets(self, channel: str) -> Iterator["_Own"]:
        """Newest first."""
        wanted = Selection(
            sources=("trunk",), max_policy_version=self.version(), verdicts=("accept", "clear", "reject")
        )
        before: int | None = None
        while page := self.pool.trajectories(wanted, before=before, limit=_PAGE):
            before = page[-1][0]
            for _, summary in page:
                for note in self.pool.notes(summary.info.id):
                    held = _SETS.decode(note.text) if (note.kind, note.name) == ("note", NOTE) else None
                    if held is not None and held.channel == channel:
                        yield _Own(channel, note.created_at, tuple(held.trunks))

    def _taken(self, own: "_Own") -> dict[tuple[str, int], "_Taken"]:
        """By (trunk, step): the group that took it anew."""
        found: dict[tuple[str, int], _Taken] = {}
        trunks = {trunk.trajectory_id for trunk in own.trunks}
        for group in self._groups_since(own.channel, own.created_at):
            info, index = group.info, group.info.origin_index
            if info.origin_id not in trunks or index is None:
                continue
            version = self._version(group)
            if version is not None and version <= self.version():
                found.setdefault((info.origin_id, index), _Taken(version, group.state == "ready"))
        return found

    def _groups_since(self, channel: str, created_at: float) -> Iterator[GroupSummary]:
        before: int | None = None
        while page := self.pool.groups(channel, before=before, limit=_PAGE):
            before = page[-1][0]
            for _, summary in page:
                if summary.info.created_at < created_at:
                    return
                yield summary

    def _version(self, group: GroupSummary) -> int | None:
        """The version that sampled a group; None of one that was not finished."""
        if group.state == "ready":
            return group.policy_version_min
        if (group.state, group.why) != ("dropped", ALIKE):
            return None
        members = self.pool.group(group.info.id).trajectories
        return max((step.policy_version_max for member in members for step in member.steps), default=None)


@dataclass(frozen=True, slots=True)
class _Own:
    """A set of trunks as its note says it."""

    channel: str
    created_at: float
    """Unix time in seconds of the note: before any group of siblings."""
    trunks: tuple[Kept, ...]


@dataclass(frozen=True, slots=True)
class _Taken:
    version: int
    ready: bool
    """Else its siblings were all alike."""


def _over(groups: Sequence[_Taken | None], now: int) -> bool:
    """Whether a turn was trained on by an earlier version, or the current one found all of its siblings alike."""
    if any(group is not None and group.version < now for group in groups):
        return True
    return all(group is not None and not group.ready for group in groups)


def _turns(trunks: Sequence[Kept]) -> int:
    return max(len(trunk.turns) for trunk in trunks)


def _has(trunk: Kept, turn: int, taken: Mapping[tuple[str, int], _Taken]) -> bool:
    return len(trunk.turns) > turn and (trunk.trajectory_id, trunk.turns[turn][0]) in taken


async def once_more(player: Player, own: Kept, trajectory: Trajectory) -> Trunk | None:
    """The trunk with its states; None, and a warning, if they cannot be made again as they were."""
    if not any(digest for _, digest in own.turns):
        return Trunk(
            own.trajectory_id, own.task_id, tuple(Fork(step, origin_id=own.trajectory_id) for step, _ in own.turns)
        )
    why = "its player has no environment"
    if isinstance(player, EnvironmentPlayer):
        steps = iter([step for step in trajectory.steps if not step.side])
        start = Start(seed=own.seed, forks=[])
        again = replace(player, actor=_Recorded(steps, player.actor), log=Nowhere())
        ending = await again.play(TrajectoryInfo(id=own.trajectory_id, task_id=own.task_id, source="trunk"), start)
        forks = tuple(start.forks or ())
        if [(fork.step, _digest(fork)) for fork in forks] == own.turns:
            return Trunk(own.trajectory_id, own.task_id, forks)
        why = ending.why if ending.how == "failed" else "the environment did not do the same again"
    _log.warning("trunk %s of task %r is not forked any more: %s", own.trajectory_id, own.task_id, why)
    return None


@dataclass(frozen=True, slots=True)
class _Recorded:
    """Answers as the policy did."""

    steps: Iterator[Step]
    policy: Agent
    """Counts tokens."""

    async def act(self, trajectory_id: str, messages: Sequence[Message], tools: Sequence[Tool]) -> Action:  # noqa: ARG002
        step = next(self.steps, None)
        if step is None:
            raise ContextOverflow("the record ends here")
        answer = answer_from_json(step.response)
        if answer is None:
            raise InvalidRequest(f"the answer of step {step.id} was not recorded as a message")
        return Action(answer, step.id)

    async def look(self, trajectory_id: str, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        """Nothing is sampled."""

    async def count(self, messages: Sequence[Message], tools: Sequence[Tool]) -> int:
        return await self.policy.count(messages, tools)
