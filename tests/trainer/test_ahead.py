"""Sampling ahead: bounded staleness without discarding anybody's work, whatever the order in which groups are done."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import virtual_time
from benchmarks.async_sim import one_step_group
from stepwell.errors import EnvironmentFailed, InvalidRequest
from stepwell.pool.lease import Lease
from stepwell.trainer.ahead import Ahead, Stale
from stepwell.trainer.staleness import fits, oldest
from stepwell.types import Group

LEARNING = 1.0
"""Seconds of an update."""


@dataclass
class World:
    """Groups that take given times in turn, a pool, and a policy whose version counts the updates."""

    seconds: Sequence[float]
    places: int = 10_000
    version: int = 0
    ready: list[Group] = field(default_factory=list)
    stale: Stale = "wait"
    leased: bool = True
    """Whether the pool hands anything over."""
    says_late: float = 0.0
    """Seconds from when the pool has a group until who made it says so."""
    fails_at: int = -1
    drops: Callable[[int], bool] = lambda number: False
    forgotten: list[str] = field(default_factory=list)
    begun: int = 0
    most_outstanding: int = 0
    trained: list[tuple[str, int]] = field(default_factory=list)
    """Name and staleness of each, in order."""

    def __post_init__(self) -> None:
        self.limit = asyncio.Semaphore(self.places)

    async def make(self, begun: Callable[[], None]) -> bool:
        number, version = self.begun, self.version
        self.begun += 1
        self.most_outstanding = max(self.most_outstanding, self.begun - len(self.trained))
        async with self.limit:
            begun()
            await asyncio.sleep(self.seconds[number % len(self.seconds)])
        if number == self.fails_at:
            raise EnvironmentFailed("it broke")
        if self.drops(number):
            return False
        self.ready.append(one_step_group(f"g{number}", version))
        if self.says_late:
            await asyncio.sleep(self.says_late * (number + 1))
        return True

    async def lease(self) -> Lease:
        groups = (self.ready.pop(0),) if self.ready and self.leased else ()
        return Lease(id="lease", consumer="run", groups=groups, expires_at=0.0)

    async def forget(self, lease: Lease) -> None:
        self.forgotten += [group.info.id for group in lease.groups]

    def ahead(self, per_update: int, max_staleness: int) -> Ahead:
        return Ahead(
            self,
            self.lease,
            lambda: self.version,
            per_update=per_update,
            max_staleness=max_staleness,
            stale=self.stale,
            forget=self.forget,
        )

    async def train(self, updates: int, per_update: int, max_staleness: int) -> dict[str, float]:
        async with self.ahead(per_update, max_staleness) as ahead:
            for _ in range(updates):
                batch = await ahead.batch()
                assert len(batch) == per_update
                self.trained += [(one.groups[0].info.id, self.version - oldest(one.groups, 0)) for one in batch]
                await asyncio.sleep(LEARNING)
                self.version += 1
            return ahead.measured()


durations = st.lists(st.floats(0.01, 100) | st.sampled_from([0.1, 1000.0]), min_size=1, max_size=30)


@settings(deadline=None)
@given(durations, st.integers(1, 4), st.integers(1, 4), st.integers(1, 12))
def test_nothing_is_trained_on_later_than_it_may_and_nothing_is_discarded(
    seconds: list[float], per_update: int, max_staleness: int, places: int
) -> None:
    async def scene() -> World:
        world = World(seconds, places)
        told = await world.train(8, per_update, max_staleness)
        assert told["groups_stale"] == 0
        return world

    world = virtual_time.run(scene())
    assert max(age for _, age in world.trained) <= max_staleness
    assert len({name for name, _ in world.trained}) == 8 * per_update
    # the first to be begun are the first that must be trained on: no later than max_staleness updates behind their turn
    place = {name: at // per_update for at, (name, _) in enumerate(world.trained)}
    assert all(place[f"g{number}"] <= number // per_update + max_staleness for number in range(per_update))


@settings(deadline=None)
@given(durations, st.integers(1, 4), st.integers(0, 4))
def test_never_more_is_outstanding_than_can_be_trained_on_in_time(
    seconds: list[float], per_update: int, max_staleness: int
) -> None:
    async def scene() -> World:
        world = World(seconds)
        await world.train(6, per_update, max_staleness)
        return world

    assert virtual_time.run(scene()).most_outstanding <= per_update * (1 + max_staleness)


def test_without_staleness_nothing_is_sampled_during_an_update() -> None:
    async def scene() -> tuple[World, dict[str, float]]:
        world = World([2.0])
        return world, await world.train(5, 3, 0)

    world, told = virtual_time.run(scene())
    assert {age for _, age in world.trained} == {0}
    assert told["seconds_rollout_idle"] == pytest.approx(5 * LEARNING)


def test_with_staleness_sampling_goes_on_during_updates_and_the_trainer_never_waits_for_more_than_it_must() -> None:
    async def scene() -> tuple[float, dict[str, float]]:
        world = World([1.0], places=2)
        told = await world.train(50, 2, 1)
        return asyncio.get_running_loop().time(), told

    seconds, told = virtual_time.run(scene())
    assert seconds == pytest.approx(51.0)  # the first batch, and 50 updates that take as long as their groups
    assert told["seconds_rollout_idle"] <= LEARNING


def test_an_update_waits_for_the_slow_group_that_would_be_too_old_after_it() -> None:
    async def scene() -> list[tuple[str, int]]:
        world = World([50.0, 1.0, 1.0, 1.0, 1.0, 1.0])
        await world.train(3, 1, 2)
        return world.trained

    assert virtual_time.run(scene()) == [("g1", 0), ("g2", 1), ("g0", 2)]


def test_groups_that_were_dropped_are_made_up_for() -> None:
    async def scene() -> World:
        world = World([1.0, 3.0], drops=lambda number: number % 2 == 0)
        await world.train(10, 2, 1)
        return world

    world = virtual_time.run(scene())
    assert [name for name, _ in world.trained] == [f"g{number}" for number in range(1, 41, 2)]


def test_a_group_that_cannot_be_made_ends_the_run_with_its_error() -> None:
    with pytest.raises(EnvironmentFailed, match="it broke"):
        virtual_time.run(World([1.0], fails_at=3).train(9, 1, 1))


def test_after_an_error_nothing_more_is_begun_and_the_first_error_is_the_one_that_is_told() -> None:
    async def scene() -> int:
        world = World([1.0], fails_at=1)
        async with world.ahead(1, 3) as ahead:
            await asyncio.sleep(50)  # an update under way
            with pytest.raises(EnvironmentFailed, match="it broke"):
                await ahead.batch()
        return world.begun

    assert virtual_time.run(scene()) == 4


def test_groups_that_the_pool_never_hands_over_are_an_error_and_no_endless_loop() -> None:
    with pytest.raises(InvalidRequest, match=r"\d groups were collected, but the pool hands none of them over"):
        virtual_time.run(World([1.0], leased=False).train(1, 2, 1))


def test_groups_of_before_that_are_too_many_to_be_trained_on_in_time_are_counted_and_left() -> None:
    async def scene() -> tuple[World, dict[str, float]]:
        world = World([1.0], version=3)
        world.ready = [one_step_group(f"old{number}", 2) for number in range(4)]
        return world, await world.train(2, 1, 1)

    world, told = virtual_time.run(scene())
    assert world.trained[0] == ("old0", 1)
    assert told["groups_stale"] == 3
    assert world.forgotten == ["old1", "old2", "old3"]
    assert world.trained[1][1] <= 1


@settings(deadline=None)
@given(durations, st.integers(1, 4), st.integers(1, 4), st.integers(1, 12))
def test_what_is_discarded_is_too_old_and_is_counted_and_what_is_trained_on_never_is(
    seconds: list[float], per_update: int, max_staleness: int, places: int
) -> None:
    async def scene() -> tuple[World, dict[str, float]]:
        world = World(seconds, places, stale="discard")
        return world, await world.train(8, per_update, max_staleness)

    world, told = virtual_time.run(scene())
    assert max(age for _, age in world.trained) <= max_staleness
    trained = {name for name, _ in world.trained}
    assert len(trained) == 8 * per_update
    assert trained.isdisjoint(world.forgotten)
    assert told["groups_stale"] == told["groups_stale/slow"] + told["groups_stale/waited"] == len(world.forgotten)
    assert told["tokens_stale"] == len(world.forgotten)  # they have one each


def test_a_slow_group_is_discarded_instead_of_waited_for_and_others_take_its_place() -> None:
    async def scene(stale: Stale) -> tuple[World, float, dict[str, float]]:
        world = World([9.5, 1.0, 1.0, 1.0, 1.0, 1.0], stale=stale)
        told = await world.train(12, 1, 2)
        return world, asyncio.get_running_loop().time(), told

    waits, slow, _ = virtual_time.run(scene("wait"))
    discards, quick, told = virtual_time.run(scene("discard"))
    assert "g0" in dict(waits.trained)
    assert "g0" not in dict(discards.trained)
    assert discards.forgotten == ["g0"]
    assert (told["groups_stale/slow"], told["groups_stale/waited"]) == (1, 0)
    assert quick == pytest.approx(13.0)  # the first group, and 12 updates none of which waits
    assert slow > quick


def test_what_becomes_too_old_while_it_waits_for_its_turn_is_told_apart_from_what_was_slow() -> None:
    async def scene() -> tuple[World, dict[str, float]]:
        world = World([1.0], version=3, stale="discard")
        world.ready = [one_step_group("slow", 1), *(one_step_group(f"old{number}", 2) for number in range(3))]
        return world, await world.train(2, 1, 1)

    world, told = virtual_time.run(scene())
    assert world.trained[0] == ("old0", 1)
    assert world.forgotten == ["slow", "old1", "old2"]
    assert (told["groups_stale/slow"], told["groups_stale/waited"]) == (1, 2)


def test_groups_that_the_pool_hands_over_before_their_makers_say_so_are_not_taken_for_lost_ones() -> None:
    """All of the first are taken when one of them is told of; then the others are told of, one by one, in vain."""

    async def scene() -> World:
        world = World([0.0] * 24 + [1000.0], says_late=0.01)
        await world.train(3, 2, 8)
        return world

    assert len(virtual_time.run(scene()).trained) == 3 * 2


def test_leaving_ends_what_is_under_way() -> None:
    async def scene() -> None:
        before = asyncio.all_tasks()
        await World([100.0, 1.0]).train(1, 1, 3)
        assert asyncio.all_tasks() == before

    virtual_time.run(scene())


@given(st.lists(st.integers(0, 6), max_size=8), st.integers(0, 6), st.integers(1, 3), st.integers(0, 3))
def test_fits_says_whether_some_order_trains_on_all_in_time(
    versions: list[int], version: int, per_update: int, max_staleness: int
) -> None:
    """By brute force: the earliest deadlines first, update by update."""
    waiting, now = sorted(versions), version
    for _ in count():
        batch, waiting = waiting[:per_update], waiting[per_update:]
        if any(now - begun > max_staleness for begun in batch):
            assert not fits(versions, version, per_update, max_staleness)
            return
        if not waiting:
            break
        now += 1
    assert fits(versions, version, per_update, max_staleness)
