"""Which trajectory a call belongs to, and what the gateway remembers of it: the next index and the ids already seen.

Everything remembered can be read back from the pool, so forgetting, by eviction or restart, costs time only.
"""

import asyncio
import contextlib
import re
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

from starlette.requests import Request

from stepwell.errors import Conflict, InvalidRequest, NotFound
from stepwell.gateway.dialects.base import ChatCall
from stepwell.pool.base import Pool
from stepwell.rendering.bridge import AnswerKey, Bridged, Seen, answer_key, bridge, restore, seen
from stepwell.rendering.messages import Message, answer_from_json
from stepwell.rendering.renderer import Renderer
from stepwell.types import Step, Trajectory, TrajectoryInfo, new_id

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@=+~-]{0,199}")
_KEY_PREFIX: Final = "sw-"
_EXTENDABLE: Final = 4  # newest steps that a call may extend: enough for subagents that take turns in one trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who calls: what of a request does not depend on the dialect."""

    trajectory_id: str | None
    """None: the call is a trajectory of its own."""
    agent: str
    """First word of the user-agent header."""


def caller_of(request: Request) -> Caller:
    """Read the caller from path and headers: `/t/{trajectory}/…`, else the API key `sw-{trajectory}`, else nobody.

    Raises:
        InvalidRequest: the trajectory's id has characters that are not allowed.
    """
    words = request.headers.get("user-agent", "").split()
    trajectory_id = request.path_params.get("trajectory") or _from_key(request)
    if trajectory_id is not None and not _ID.fullmatch(trajectory_id):
        raise InvalidRequest(
            f"trajectory id {trajectory_id[:200]!r} must be 1 to 200 letters, digits or . _ : @ = + ~ -, "
            "and begin with a letter or digit"
        )
    return Caller(trajectory_id=trajectory_id, agent=words[0][:100] if words else "")


def _from_key(request: Request) -> str | None:
    key = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
    key = key or request.headers.get("x-api-key", "").strip()
    return key.removeprefix(_KEY_PREFIX) if key.startswith(_KEY_PREFIX) else None


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
    seen: deque[Seen] = field(default_factory=lambda: deque(maxlen=_EXTENDABLE))
    sampled: dict[AnswerKey, str] = field(default_factory=dict)
    """What was sampled for each answer that the client got."""
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)

    def prompt(self, renderer: Renderer, call: ChatCall) -> Bridged:
        """The ids for the next answer. Raises InvalidRequest if the template refuses the conversation."""
        return bridge(renderer, self.seen, renderer.text(restore(call.messages, self.sampled), call.tools))

    def take_index(self) -> int:
        """The next free position; calls that overlap get different ones."""
        self.next_index += 1
        return self.next_index - 1

    def remember(self, renderer: Renderer, step: Step, answer: Message | None) -> None:
        """Let later calls extend `step`, which is stored."""
        self.seen.append(seen(renderer, step.prompt_ids, step.response_ids))
        if answer is not None:
            self.sampled[answer_key(answer)] = renderer.raw_answer(step.response_ids)

    def load(self, renderer: Renderer, stored: Trajectory) -> None:
        """Take over what the pool has. Raises Conflict if the trajectory has ended."""
        if stored.status != "open":
            raise Conflict(f"trajectory {self.info.id!r} has ended ({stored.status}); start a new one")
        after_last = stored.steps[-1].index + 1 if stored.steps else 0
        # Steps on their way hold indices that the pool does not know yet.
        self.next_index = max(self.next_index, after_last) if self.appends else after_last
        self.seen.clear()
        for step in stored.steps:
            answer = answer_from_json(step.response)
            if answer is not None:
                self.sampled[answer_key(answer)] = renderer.raw_answer(step.response_ids)
        self.seen.extend(seen(renderer, step.prompt_ids, step.response_ids) for step in stored.steps[-_EXTENDABLE:])
        self.info, self.opened = stored.info, True


class Sessions:
    """The trajectories that calls arrived for lately, at most `capacity` of them idle."""

    def __init__(self, pool: Pool, renderer: Renderer, capacity: int) -> None:
        """Start with none; each is read from `pool` when it is first asked for."""
        self._pool = pool
        self._renderer = renderer
        self._capacity = capacity
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    @contextlib.asynccontextmanager
    async def use(self, caller: Caller) -> AsyncIterator[Session]:
        """The caller's session, kept while the block runs.

        Raises:
            Conflict: the trajectory has ended.
            PoolError: the pool cannot be read.
        """
        if caller.trajectory_id is None:
            yield Session(info=TrajectoryInfo(id=new_id("traj"), agent=caller.agent), fresh=True)
            return
        session = self._get(caller.trajectory_id, caller.agent)
        session.calls += 1
        try:
            async with session.loading:
                if not session.fresh:
                    await self._load(session)
            yield session
        finally:
            session.calls -= 1
            self._evict()

    def forget(self, trajectory_id: str) -> None:
        """Somebody else wrote to this trajectory: read it again before its next call."""
        if trajectory_id in self._sessions:
            self._sessions[trajectory_id].fresh = False

    def _get(self, trajectory_id: str, agent: str) -> Session:
        session = self._sessions.get(trajectory_id)
        if session is None:
            session = Session(info=TrajectoryInfo(id=trajectory_id, agent=agent))
            self._sessions[trajectory_id] = session
        self._sessions.move_to_end(trajectory_id)
        return session

    async def _load(self, session: Session) -> None:
        session.fresh = True  # before reading: a `forget` meanwhile must not be lost
        try:
            stored = await asyncio.to_thread(self._pool.trajectory, session.info.id)
            session.load(self._renderer, stored)
        except NotFound:
            pass  # it is opened together with its first step
        except BaseException:
            session.fresh = False
            raise

    def _evict(self) -> None:
        while len(self._sessions) > self._capacity:
            oldest_idle = next((key for key, session in self._sessions.items() if not session.calls), None)
            if oldest_idle is None:
                return
            del self._sessions[oldest_idle]
