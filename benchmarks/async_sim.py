"""What bounded staleness buys: thousands of agents of heavy-tailed durations, simulated, under Stepwell's own pacing.

The code under test is the trainer's (`stepwell.trainer.ahead`); agents and updates only sleep, in virtual time. Three
ways to train: a barrier (each update samples anew and waits for its slowest group), staleness bounded by pacing and
waiting (ours), and as much as there is room for, with what became too old thrown away (what most others do).
"""

import asyncio
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

sys.path.insert(0, str(Path(__file__).parent))  # so that it also runs when it is imported as benchmarks.async_sim
import virtual_time
from report import Row, main

from stepwell.pool.lease import Lease
from stepwell.trainer.ahead import Ahead
from stepwell.trainer.staleness import oldest
from stepwell.types import Group, GroupInfo, Step, Trajectory, TrajectoryInfo

GROUP = 8
STALENESS = (1, 2, 4, 8)
_DISCARDING = 2
"""Staleness that is allowed where what is older is thrown away."""
_MEDIAN, _SIGMA = 60.0, 1.0
"""Seconds of an agent, and the deviation of their logarithm: one in a hundred takes ten times the median."""


@dataclass(frozen=True)
class Scale:
    """How much is simulated."""

    places: int
    """Agents that run at once."""
    per_update: int
    """Groups."""
    updates: int

    @property
    def learning(self) -> float:
        """Seconds of an update: as long as the places need for its groups, if none of them ever waits."""
        return _MEDIAN * math.exp(_SIGMA**2 / 2) * GROUP * self.per_update / self.places


@dataclass
class Fleet:
    """Agents in virtual time, what they made, and what became of it."""

    scale: Scale
    random: np.random.Generator
    keep: int | None = None
    """Updates after which what was made is thrown away; None: never."""
    version: int = 0
    ready: list[Group] = field(default_factory=list)
    busy: float = 0.0
    """Seconds of agents."""
    offered: list[float] = field(default_factory=list)
    """Seconds of each agent's work."""
    trained: list[float] = field(default_factory=list)
    ages: list[int] = field(default_factory=list)
    discarded: int = 0
    waited: float = 0.0
    """Seconds of the trainer."""
    seconds: float = 0.0
    _of_group: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._places = asyncio.Semaphore(self.scale.places)

    async def make(self, begun: Callable[[], None]) -> bool:
        version = self.version
        durations = self.random.lognormal(np.log(_MEDIAN), _SIGMA, GROUP).tolist()
        playing = [asyncio.create_task(self._play(seconds)) for seconds in durations]
        await asyncio.sleep(0)  # they queue up for places
        async with self._places:  # and have them, as places are given in the order of asking
            begun()
        await asyncio.gather(*playing)
        name = str(len(self._of_group))
        self._of_group[name] = durations
        self.offered += durations
        self.ready.append(one_step_group(name, version))
        return True

    async def _play(self, seconds: float) -> None:
        async with self._places:
            await asyncio.sleep(seconds)
            self.busy += seconds

    async def lease(self) -> Lease:
        groups: tuple[Group, ...] = ()
        while self.ready and not groups:
            first = self.ready.pop(0)
            if self.keep is not None and self.version - oldest([first], 0) > self.keep:
                self.discarded += 1
            else:
                groups = (first,)
        return Lease(id="", consumer="", groups=groups, expires_at=0.0)

    async def train(self, max_staleness: int) -> None:
        loop, per_update = asyncio.get_running_loop(), self.scale.per_update
        ahead = Ahead(self, self.lease, lambda: self.version, per_update=per_update, max_staleness=max_staleness)
        async with ahead:
            for _ in range(self.scale.updates):
                asked = loop.time()
                batch = [lease.groups[0] for lease in await ahead.batch()]
                self.waited += loop.time() - asked
                for group in batch:
                    self.ages.append(self.version - oldest([group], 0))
                    self.trained += self._of_group[group.info.id]
                await asyncio.sleep(self.scale.learning)
                self.version += 1
        self.seconds = loop.time()


def one_step_group(name: str, version: int) -> Group:
    """Of one trajectory of one step that this version sampled."""
    info = TrajectoryInfo(id=name, group_id=name)
    step = Step(
        id=name,
        trajectory_id=name,
        index=0,
        prompt_ids=np.ones(1, np.int32),
        response_ids=np.ones(1, np.int32),
        logprobs=np.zeros(1, np.float32),
        policy_version_min=version,
        policy_version_max=version,
    )
    trajectory = Trajectory(info=info, steps=(step,), step_rewards=(0.0,))
    return Group(info=GroupInfo(id=name, task_id=name, size=1), trajectories=(trajectory,))


def simulate(scale: Scale, max_staleness: int, *, discarding: bool = False) -> Fleet:
    """One run from its first update to its last."""

    async def course() -> Fleet:
        fleet = Fleet(scale, np.random.default_rng(0), _DISCARDING if discarding else None)
        await fleet.train(max_staleness)
        return fleet

    return virtual_time.run(course())


def measure(quick: bool) -> Sequence[Row]:
    scale = Scale(256, 32, 40) if quick else Scale(2048, 256, 60)
    rows = [Row(name=f"agents at once, {scale.per_update} groups of {GROUP} per update", value=scale.places, unit="")]
    ways = [("barrier", 0, False), *((f"staleness {s}", s, False) for s in STALENESS), ("discarding", 64, True)]
    barrier = None
    for name, staleness, discarding in track(ways, "Simulating", console=Console(stderr=True)):
        fleet = simulate(scale, staleness, discarding=discarding)
        barrier = barrier or fleet
        rows += _rows(name, fleet, barrier)
    return rows


def _rows(name: str, fleet: Fleet, barrier: Fleet) -> Sequence[Row]:
    goal = {"staleness 4": 2.0}.get(name)
    made, trained = np.mean(fleet.offered), np.mean(fleet.trained)
    return [
        Row(name=f"{name}: updates per hour", value=fleet.scale.updates / fleet.seconds * 3600, unit=""),
        Row(name=f"{name}: speed-up", value=barrier.seconds / fleet.seconds, unit="x", goal=goal, better="higher"),
        Row(name=f"{name}: agents busy", value=100 * fleet.busy / fleet.seconds / fleet.scale.places, unit="%"),
        Row(name=f"{name}: trainer waiting", value=100 * fleet.waited / fleet.seconds, unit="%"),
        Row(name=f"{name}: mean staleness", value=float(np.mean(fleet.ages)), unit="updates"),
        Row(name=f"{name}: duration, trained on / made", value=float(trained / made), unit="x"),
        Row(name=f"{name}: groups thrown away", value=float(fleet.discarded), unit=""),
    ]


if __name__ == "__main__":
    main("Asynchronous training, simulated", measure)
