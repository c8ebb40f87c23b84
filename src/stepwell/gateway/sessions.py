"""Which trajectory a call belongs to, and what the gateway remembers of it: the next index and the ids already seen.

What a caller names (`callers`) decides; else the history does: a call that extends an earlier one, or departs from it
after one of its answers, belongs to the same trajectory; one with no relation starts a new one. Calls beside the
agent's work (titles, probes) get a trajectory of their own, named after the main one, so that they are collected and
never trained on. Everything that is remembered of a trajectory can be read back from the pool, so forgetting, by
eviction or restart, costs time only; calls that name no trajectory start a new one then.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Final

import numpy as np

from stepwell.errors import Conflict, NotFound
from stepwell.gateway.admission import Admission
from stepwell.gateway.callers import Caller
from stepwell.gateway.dialects.base import ChatCall
from stepwell.gateway.origin import Origin, Pasts
from stepwell.gateway.recall import Recall
from stepwell.pool.base import Pool
from stepwell.rendering.bridge import Asked, Bridged, Memory, Seen, bridge, seen
from stepwell.rendering.messages import Message
from stepwell.rendering.renderer import Renderer
from stepwell.rendering.wire import answer_from_json
from stepwell.types import Ids, Side, Step, Trajectory, TrajectoryInfo, new_id

_SIDE_SUFFIX: Final = "~side"
_SIBLINGS: Final = 256
"""Trajectories with the same history that are told apart; of more, the oldest are taken to be over."""


@dataclass(slots=True, kw_only=True)
class Session:
    """One trajectory while calls arrive for it. Used from one event loop only."""

    info: TrajectoryInfo
    opened: bool = False
    """Whether the pool has the trajectory."""
    fresh: bool = False
    """Whether what is below agrees with the pool."""
    next_index: int = 0
    calls: int = 0
    """Calls in progress."""
    appends: int = 0
    """Steps on their way to the pool."""
    begun: bool = False
    """Whether a call of it has begun a conversation, stored or not yet."""
    offers_tools: bool = False
    """Whether a call of it has offered tools."""
    memory: Memory = field(default_factory=Memory)
    origin: Origin | None = None
    """Of a fork: what its agent is answered with at first."""
    weight: int = 0
    """Bytes of the memory that are counted already."""
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def idle(self) -> bool:
        """Whether it can be forgotten: everything of it is in the pool."""
        return not self.calls and not self.appends

    def take_index(self) -> int:
        """The next free position; calls that overlap get different ones."""
        self.next_index += 1
        return self.next_index - 1

    def add(self, step: Seen) -> None:
        """Let later calls extend `step`, which is stored."""
        self.memory.add(step)
        self.offers_tools |= bool(step.tools_key)

    def begin(self, bridged: Bridged) -> Bridged:
        """A call's prompt: only the first conversation of a trajectory is its root, however long its answer takes."""
        if bridged.fork == "root" and self.begun:
            return replace(bridged, fork="client")
        self.begun = True
        return bridged

    def knows(self, keys: Sequence[bytes]) -> bool:
        """Whether a conversation with these history keys has anything to do with what was said here."""
        known = {key for step in self.memory.recent for key in (step.request_key, step.history_key)}
        return not known.isdisjoint(keys[1:])

    def load(self, stored: Trajectory, steps: Sequence[Seen], origin: Origin | None = None) -> None:
        """Take over what the pool has; `steps` are those of the origin, too. Raises Conflict if it has ended."""
        if stored.status != "open":
            how = f"{stored.status}: {stored.why}" if stored.why else stored.status
            raise Conflict(f"trajectory {self.info.id!r} has ended ({how}); start a new one")
        self.origin = origin
        first = origin.index if origin else 0
        after_last = stored.steps[-1].index + 1 if stored.steps else first
        # Steps on their way hold indices that the pool does not know yet.
        self.next_index = max(self.next_index, after_last) if self.appends else after_last
        self.memory = Memory()
        for step in steps:
            self.add(step)
        self.info, self.opened = stored.info, True


class Sessions:
    """The trajectories that calls arrived for lately, at most `capacity` of them idle."""

    def __init__(
        self, pool: Pool, renderer: Renderer, recall: Recall, admission: Admission, capacity: int, budget: int
    ) -> None:
        """Start with none; each is read from `pool` when it is first asked for. `budget` is in bytes, about."""
        self._admission = admission
        self._pool = pool
        self._pasts = Pasts(pool)
        self._renderer = renderer
        self._recall = recall
        self._capacity = capacity
        self._budget = budget
        self._held = 0
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._histories = _Histories(capacity)
        self._successors: dict[str, str] = {}  # of trajectories that ended while the client's session went on

    def use(self, caller: Caller, call: ChatCall, asked: Asked, again: str = "") -> "_Use":
        """The session of a call, kept while an `async with` block runs; one that fails leaves a trace in the history.

        Args:
            caller: Who calls.
            call: What is asked.
            asked: Its whole conversation.
            again: The trajectory of the attempt that this call repeats; empty if it repeats none.

        Raises:
            Conflict: the trajectory has ended.
            RateLimited: it would be a new one, and nothing new may begin.
            PoolError: the pool cannot be read.
        """
        return _Use(self, caller, call, asked, again)

    async def enter(self, caller: Caller, call: ChatCall, asked: Asked, again: str) -> Session:
        """Begin a call, which must `leave`. As `use`."""
        session, known = await self._main(caller, call, asked, again)
        if not session.opened and session.calls == 1:
            try:
                await self._admission.admit()
            except BaseException:
                self.leave(session)
                raise
        if not call.titled and not _is_beside(session, call, caller, asked.keys):
            return session
        self.leave(session)
        side_id = session.info.id + _SIDE_SUFFIX if known else session.info.id
        return await self._enter(side_id, caller.agent)

    def leave(self, session: Session) -> None:
        """End a call."""
        session.calls -= 1
        self._evict()

    async def _main(self, caller: Caller, call: ChatCall, asked: Asked, again: str) -> tuple[Session, bool]:
        """The session that a call names or goes on with, and whether there is such a one; else a new one.

        One that has ended is a mistake only of who names it on purpose; for the others the next one begins.
        """
        named = caller.trajectory_id or again or await self._referred(call)
        named = self._successors.get(named, named)
        known = named or self._histories.find(caller.scope, asked.keys, asked.messages)
        if known:
            try:
                return await self._enter(known, caller.agent), True
            except Conflict:
                if caller.trajectory_id is not None and not caller.hinted:
                    raise
        trajectory_id = new_id("traj")
        if caller.trajectory_id is not None:
            self._successors[caller.trajectory_id] = trajectory_id
            if len(self._successors) > self._capacity:
                del self._successors[next(iter(self._successors))]
        return await self._enter(trajectory_id, caller.agent, new=True), caller.trajectory_id is not None

    async def _referred(self, call: ChatCall) -> str:
        if not call.previous_id:
            return ""
        return await asyncio.to_thread(self._recall.trajectory_of, call.previous_id)

    async def _enter(self, trajectory_id: str, agent: str, *, new: bool = False) -> Session:
        session = self._sessions.get(trajectory_id)
        if session is None:
            session = Session(info=TrajectoryInfo(id=trajectory_id, agent=agent), fresh=new)
            self._sessions[trajectory_id] = session
        self._sessions.move_to_end(trajectory_id)
        session.calls += 1
        try:
            if not session.fresh or session.loading.locked():
                async with session.loading:
                    if not session.fresh:
                        await self._load(session)
        except BaseException:
            session.calls -= 1
            raise
        return session

    def remember(self, session: Session, scope: bytes, step: Seen) -> None:
        """A step was stored: later calls may extend it, and are found by its history."""
        session.add(step)
        self._weigh(session)
        self._histories.add(scope, step, session.info.id)

    def attempted(self, scope: bytes, asked: Asked, trajectory_id: str) -> None:
        """A call came to nothing: calls that extend its request still belong to its trajectory."""
        self._histories.add_request(scope, asked.keys[-1], trajectory_id)

    def forget(self, trajectory_id: str) -> None:
        """Somebody else wrote to this trajectory: read it again before its next call."""
        if trajectory_id in self._sessions:
            self._sessions[trajectory_id].fresh = False

    async def _load(self, session: Session) -> None:
        session.fresh = True  # before reading: a `forget` meanwhile must not be lost
        try:
            session.load(*await asyncio.to_thread(self._read, session.info.id))
            self._weigh(session)
        except NotFound:
            pass  # it is opened together with its first step
        except BaseException:
            session.fresh = False
            raise

    def _read(self, trajectory_id: str) -> tuple[Trajectory, list[Seen], Origin | None]:
        """What the pool has of a trajectory, and where it comes from, if it is a fork without a step of its own."""
        stored = self._pool.trajectory(trajectory_id)
        own = any(not step.side for step in stored.steps)
        shown = partial(self._renderer.decode, skip_special=False)
        origin = None if own else self._pasts.origin_of(stored.info, shown)
        past = origin.past if origin else ()
        return stored, self._recalled((*past, *stored.steps)), origin

    def _recalled(self, steps: Sequence[Step]) -> list[Seen]:
        memory, recalled = Memory(), []
        for step in steps:
            recalled.append(self._seen(step, memory))
            memory.add(recalled[-1])
        return recalled

    def _seen(self, step: Step, memory: Memory) -> Seen:
        asked = self._recall.of_step(step)
        prompt_ids, prefill_ids = np.split(step.prompt_ids, [len(step.prompt_ids) - step.prefill])
        prefill = self._renderer.decode(prefill_ids, skip_special=False)
        text = self._written(prompt_ids, asked, memory) + prefill
        bridged = Bridged(prompt_ids=step.prompt_ids, text=text, reused=0, parent_id="", fork="")
        answer = answer_from_json(step.response) or Message(role="assistant")
        return seen(self._renderer, step.id, asked, bridged, step.response_ids, answer, prefill, step.prefill)

    def _written(self, prompt_ids: Ids, asked: Asked, memory: Memory) -> str:
        """The text of a prompt. Its ids tell, but for words that the tokenizer does not know; then the request does."""
        text = self._renderer.decode(prompt_ids, skip_special=False)
        if all(message.content.strip() in text for message in asked.messages if message.role != "assistant"):
            return text
        bridged = bridge(self._renderer, memory, asked)
        return bridged.text if np.array_equal(bridged.prompt_ids, prompt_ids) else text

    def _evict(self) -> None:
        while len(self._sessions) > self._capacity or self._held > self._budget:
            oldest_idle = next((key for key, session in self._sessions.items() if session.idle), None)
            if oldest_idle is None:
                return
            self._held -= self._sessions.pop(oldest_idle).weight

    def _weigh(self, session: Session) -> None:
        if self._sessions.get(session.info.id) is session:
            self._held += session.memory.size - session.weight
            session.weight = session.memory.size


class _Use:
    """What `contextlib` would make of a generator, for a tenth of the time."""

    def __init__(self, sessions: Sessions, caller: Caller, call: ChatCall, asked: Asked, again: str) -> None:
        self._sessions = sessions
        self._caller = caller
        self._call = call
        self._asked = asked
        self._again = again

    async def __aenter__(self) -> Session:
        self._session = await self._sessions.enter(self._caller, self._call, self._asked, self._again)
        return self._session

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._sessions.attempted(self._caller.scope, self._asked, self._session.info.id)
        self._sessions.leave(self._session)


def side_of(call: ChatCall, session: Session) -> Side:
    """What a call is for, if it is beside the agent's work."""
    if call.titled:
        return "title"
    return "other" if session.info.id.endswith(_SIDE_SUFFIX) else ""


def _is_beside(session: Session, call: ChatCall, caller: Caller, keys: Sequence[bytes]) -> bool:
    """Without tools in a session that has some, and about nothing that was said there."""
    return session.offers_tools and not call.tools and not caller.subagent and not session.knows(keys)


_Table = OrderedDict[tuple[bytes, bytes], dict[str, bool]]
"""By scope and key of a history: the trajectories that have it, and whether they were gone on with from there."""


class _Histories:
    """Trajectories by what was said in them, for calls that do not name theirs."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity * 16
        self._answered: _Table = OrderedDict()
        self._asked: _Table = OrderedDict()

    def add(self, scope: bytes, step: Seen, trajectory_id: str) -> None:
        if step.history_key:
            self._put(self._answered, (scope, step.history_key), trajectory_id)
            self.add_request(scope, step.request_key, trajectory_id)

    def add_request(self, scope: bytes, key: bytes, trajectory_id: str) -> None:
        self._put(self._asked, (scope, key), trajectory_id)

    def find(self, scope: bytes, keys: Sequence[bytes], messages: Sequence[Message]) -> str:
        """The trajectory whose answer is part of this history, else whose question is, with more behind it; or empty.

        Where several said the same, the one that nobody has gone on with yet: siblings with equal answers stay apart.
        """
        answered = (self._answered.get((scope, key)) for key in reversed(keys[1:]))
        asked = (self._asked.get((scope, key)) for key in reversed(keys[1 : len(messages)]))
        found = next(filter(None, chain(answered, asked)), None)
        if not found:
            return ""
        chosen = next((trajectory_id for trajectory_id, used in found.items() if not used), next(reversed(found)))
        del found[chosen]  # and put last, as the one that was gone on with last
        found[chosen] = True
        return chosen

    def _put(self, table: "_Table", key: tuple[bytes, bytes], trajectory_id: str) -> None:
        known = table.setdefault(key, {})
        known.setdefault(trajectory_id, False)
        if len(known) > _SIBLINGS:
            del known[next(iter(known))]
        table.move_to_end(key)
        if len(table) > self._capacity:
            table.popitem(last=False)
