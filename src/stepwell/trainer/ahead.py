"""Sampling ahead of the trainer, never so far that what was sampled is too old when its turn comes.

With `b` groups per update and at most `s` updates of staleness, `b * (1 + s)` groups may be outstanding, which are
those under way or ready: all of them can be trained on before the version that the last was begun with is more than
`s` updates old. A batch is the oldest that are ready. It is complete once what it leaves can still be trained on in
time: where a slow group would be too old afterwards, the update waits for it. So nothing is discarded because it was
slow, and what is trained on is not what happened to be quick. (The capacity is AReaL's, arXiv 2505.24298, section 5.1;
the wait is ours.)

Where what is stale is to be discarded instead, an update waits for nobody: it takes the oldest that are young enough,
and a group that is under way for too long gives its place to another, and is counted and left once it is done.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, Literal, Protocol, Self

from stepwell.errors import InvalidRequest
from stepwell.pool.lease import Lease
from stepwell.trainer.staleness import fits, oldest, sampled_tokens

Stale = Literal["wait", "discard"]
Reason = Literal["slow", "waited"]
"""Why a group is too old: it was so when it was done, or it was not its turn for long."""

_FRUITLESS: Final = 3
"""So many updates' groups are made, of which the pool hands none over, before that is taken for a mistake."""


class Producer(Protocol):
    """Makes groups, several at a time."""

    async def make(self, begun: Callable[[], None]) -> bool:
        """Make the group of the next task ready in the pool. False: there is to be none, it was dropped.

        Calls `begun` when all of its trajectories play, so that there may be room for another group.
        """
        ...


async def _nothing(_: Lease) -> None:
    pass


class Ahead:
    """Groups that are made while the trainer trains; a context manager, as it works in the background."""

    def __init__(
        self,
        producer: Producer,
        lease: Callable[[], Awaitable[Lease]],
        version: Callable[[], int],
        *,
        per_update: int,
        max_staleness: int,
        stale: Stale = "wait",
        ready: Sequence[Lease] = (),
        forget: Callable[[Lease], Awaitable[None]] = _nothing,
    ) -> None:
        """`lease` takes one ready group from the pool, or none, and `ready` are those that it took before; `version` is
        that of the policy that samples now. `stale` says what is done so that nothing too old is trained on: `wait` for
        slow groups, or `discard` them, for which `lease` must give those that are too old, too. `forget` is told of
        leases that nobody will train on."""
        self._producer = producer
        self._lease = lease
        self._version = version
        self._forget = forget
        self._per_update = per_update
        self._max_staleness = max_staleness
        self._discards = stale == "discard"
        self._capacity = per_update * (1 + max_staleness)
        self._under_way: dict[asyncio.Task[None], int] = {}
        """And the version that each was begun with."""
        self._made = 0
        """That the pool was not asked for yet."""
        self._vain = 0
        """Those that it was asked for, and had not, since it last had one; below 0: had before it was to be asked."""
        self._ready = [(oldest(one.groups, version()), one) for one in ready]
        """Of one group each, and its oldest version, by which they are in order."""
        self._stale: Counter[Reason] = Counter()
        """Groups that became too old: slow ones, where these are discarded, or else of others that fill the pool, or
        made when more staleness was allowed."""
        self._stale_tokens = 0
        self._error: BaseException | None = None
        self._room, self._news = asyncio.Event(), asyncio.Event()
        self._clock = _Clock(0.0)
        self._background: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._clock = _Clock(_now())
        self._background = asyncio.create_task(self._produce())
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [*self._under_way, *([self._background] if self._background else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def batch(self) -> list[Lease]:
        """The groups of the next update, one lease each.

        Raises:
            InvalidRequest: groups were made again and again, and the pool hands none of them over.
            StepwellError: a group could not be made.
        """
        self._allow(self._per_update * (1 + self._max_staleness))
        while True:
            self._news.clear()
            if self._error is not None:
                raise self._error
            await self._take_ready()
            chosen, rest = self._ready[: self._per_update], self._ready[self._per_update :]
            left = [*(version for version, _ in rest), *self._under_way.values()]
            if len(chosen) == self._per_update and (
                self._discards
                or not self._under_way
                or fits(left, self._version() + 1, self._per_update, self._max_staleness)
            ):
                self._ready = rest
                self._allow(self._per_update * self._max_staleness)
                return [lease for _, lease in chosen]
            await self._news.wait()

    def measured(self) -> dict[str, float]:
        """Since it was last asked: groups that became too old, by reason, and their sampled tokens; seconds in which
        nothing was sampled, and in which the pace held a group back."""
        self._tick()
        told = self._clock.told() | {
            "groups_stale": float(self._stale.total()),
            "groups_stale/slow": float(self._stale["slow"]),
            "groups_stale/waited": float(self._stale["waited"]),
            "tokens_stale": float(self._stale_tokens),
        }
        self._clock, self._stale, self._stale_tokens = _Clock(_now()), Counter(), 0
        return told

    @property
    def _paced(self) -> bool:
        hopeful = list(self._under_way.values())
        if self._discards:
            hopeful = [version for version in hopeful if not self._too_old(version)]
        return len(hopeful) + self._made + len(self._ready) >= self._capacity

    def _too_old(self, version: int) -> bool:
        return self._version() - version > self._max_staleness

    def _tick(self) -> None:
        """To be called before what is measured changes."""
        self._clock.tick(idle=not self._under_way, paced=self._paced)

    def _allow(self, capacity: int) -> None:
        self._tick()
        self._capacity = capacity
        self._room.set()

    async def _produce(self) -> None:
        while True:
            self._room.clear()
            if self._paced or self._error is not None:
                await self._room.wait()
                continue
            self._tick()
            begun = asyncio.Event()
            self._under_way[asyncio.create_task(self._make(begun.set))] = self._version()
            await begun.wait()

    async def _make(self, begun: Callable[[], None]) -> None:
        made = False
        try:
            made = await self._producer.make(begun)
        except Exception as error:  # whatever it is, the trainer is to raise it
            self._error = self._error or error
        finally:
            self._tick()
            self._made += made
            del self._under_way[_this_task()]
            begun()
            self._room.set()
            self._news.set()

    async def _take_ready(self) -> None:
        """All groups that the pool has for us by now."""
        while self._ready and self._too_old(self._ready[0][0]):
            await self._discard(self._ready.pop(0)[1], "waited")
        expected, taken = self._made, 0
        while (lease := await self._lease()).groups:
            taken += 1
            version = oldest(lease.groups, self._version())
            if self._too_old(version):
                await self._discard(lease, "slow")
            else:
                self._ready.append((version, lease))
        self._tick()
        self._made -= expected
        self._room.set()
        self._ready.sort(key=itemgetter(0))
        # some were handed over before those who made them had said so, as many as are under way at most
        missed = self._vain if not taken else min(self._vain, 0)
        self._vain = max(missed + expected - taken, -len(self._under_way))
        if self._vain >= _FRUITLESS * self._per_update:
            raise InvalidRequest(
                f"{self._vain} groups were collected, but the pool hands none of them over: see `stepwell pool stats` "
                "for what it dropped, and why"
            )

    async def _discard(self, lease: Lease, reason: Reason) -> None:
        self._stale[reason] += len(lease.groups)
        self._stale_tokens += sampled_tokens(lease.groups)
        await self._forget(lease)


def _this_task() -> asyncio.Task[None]:
    task = asyncio.current_task()
    assert task is not None
    return task


def _now() -> float:
    return asyncio.get_running_loop().time()


@dataclass(slots=True)
class _Clock:
    """Of how long it was so, and so."""

    last: float
    idle: float = 0.0
    paced: float = 0.0

    def tick(self, *, idle: bool, paced: bool) -> None:
        now = _now()
        self.idle += (now - self.last) * idle
        self.paced += (now - self.last) * paced
        self.last = now

    def told(self) -> dict[str, float]:
        return {"seconds_rollout_idle": self.idle, "seconds_rollout_paced": self.paced}
