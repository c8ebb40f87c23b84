"""The laws of the feed: what is handed over, in which order, how much, what is dropped and why."""

import threading

import pytest

from stepwell.curation.selection import Selection
from stepwell.errors import Conflict, NoProducer, NotFound
from stepwell.pool.base import Pool
from stepwell.pool.lease import Consumption, LeaseSpec
from stepwell.types import Annotation, GroupInfo, Record, TrajectoryInfo, UpdateInfo
from tests.pool.builders import complete_trajectory
from tests.pool.conftest import FakeClock


def names(pool: Pool, consumer: str = "trainer", **fields) -> list[str]:
    """Ids of what a lease of (nearly) everything hands over."""
    groups = pool.lease(LeaseSpec(consumer=consumer, **{"limit": 100, **fields})).groups
    return [group.info.id for group in groups]


def members(pool: Pool, consumer: str = "trainer", **fields) -> list[list[str]]:
    groups = pool.lease(LeaseSpec(consumer=consumer, **{"limit": 100, **fields})).groups
    return [[trajectory.info.id for trajectory in group.trajectories] for group in groups]


def consumption(pool: Pool, consumer: str = "trainer", epoch: int = 0) -> Consumption:
    (own,) = (one for one in pool.consumption() if (one.consumer, one.epoch) == (consumer, epoch))
    return own


def group_of(name: str, *versions: int, **fields) -> list[Record]:
    """A ready group whose trajectories were sampled by these versions."""
    own = [complete_trajectory(f"{name}-{number}", name, version=version) for number, version in enumerate(versions)]
    info = GroupInfo(id=name, task_id="task", **{"size": len(versions), **fields})
    return [info, *(record for taken in own for record in taken)]


class OrderLaws:
    def test_the_freshest_come_first_if_asked(self, pool: Pool) -> None:
        pool.put(*group_of("old", 1), *group_of("new", 7), *group_of("middle", 7, 3))
        assert names(pool, order="freshest") == ["new", "middle", "old"]

    def test_higher_priority_comes_first_if_asked_and_equals_as_they_became_ready(self, pool: Pool) -> None:
        pool.put(*group_of("a", 0), *group_of("b", 0, priority=2.0), *group_of("c", 0, priority=2.0))
        assert names(pool, order="priority") == ["b", "c", "a"]

    def test_a_random_order_is_decided_by_its_seed(self, pool: Pool) -> None:
        pool.put(*(record for number in range(12) for record in group_of(f"g{number}", 0)))
        shuffled = [names(pool, f"c{consumer}", order="random", seed=seed) for consumer, seed in enumerate((1, 1, 2))]
        assert shuffled[0] == shuffled[1]
        assert shuffled[0] != shuffled[2]
        assert sorted(shuffled[0]) == sorted(shuffled[2]) == sorted(f"g{number}" for number in range(12))
        assert names(pool, "one by one", order="random", seed=1, limit=1) == shuffled[0][:1]

    def test_a_budget_of_steps_or_tokens_is_kept_in_order(self, pool: Pool) -> None:
        pool.put(*group_of("a", 0, 0), *group_of("b", 0), *group_of("c", 0))
        assert names(pool, "steps", max_steps=3) == ["a", "b"]
        assert names(pool, "tokens", max_tokens=11) == ["a"]  # each step has 2 prompt and 2 response tokens
        assert names(pool, "tokens", max_tokens=4) == ["b"]

    def test_a_unit_that_alone_is_over_the_budget_comes_alone(self, pool: Pool) -> None:
        pool.put(*group_of("large", 0, 0, 0), *group_of("small", 0))
        assert names(pool, max_steps=2) == ["large"]
        assert names(pool, max_steps=2) == ["small"]


class UnitLaws:
    def test_single_trajectories_come_as_groups_of_one_whether_they_have_a_group_or_not(self, pool: Pool) -> None:
        pool.put(GroupInfo(id="g", task_id="task", size=5), *complete_trajectory("in", "g"))
        pool.put(*complete_trajectory("out", None))
        spec = LeaseSpec(consumer="trainer", unit="trajectory", limit=9)
        groups = pool.lease(spec).groups
        assert [(group.info.id, group.info.size) for group in groups] == [("in", 1), ("out", 1)]
        assert [[t.info.id for t in group.trajectories] for group in groups] == [["in"], ["out"]]
        assert pool.lease(spec).groups == ()

    def test_siblings_and_other_groups_are_different_units(self, pool: Pool) -> None:
        pool.put(*group_of("plain", 0), *group_of("forked", 0, origin_id="plain-0", origin_index=2))
        assert names(pool, unit="siblings") == ["forked"]
        assert names(pool, unit="group") == ["plain"]

    def test_each_epoch_hands_everything_over_once(self, pool: Pool) -> None:
        pool.put(*group_of("a", 0), *group_of("b", 0))
        for epoch in (0, 1):
            lease = pool.lease(LeaseSpec(consumer="trainer", epoch=epoch, limit=9))
            assert [group.info.id for group in lease.groups] == ["a", "b"]
            pool.acknowledge(lease.id)
            assert names(pool, epoch=epoch) == []

    def test_a_group_that_becomes_ready_behind_consumed_ones_is_not_overlooked(self, pool: Pool) -> None:
        pool.put(GroupInfo(id="late", task_id="task", size=1), TrajectoryInfo(id="late-0", group_id="late"))
        for number in range(3):
            pool.put(*group_of(f"g{number}", 0))
            pool.acknowledge(pool.lease(LeaseSpec(consumer="trainer")).id)
        pool.put(Annotation.reward("trajectory", "late-0", 1.0), Annotation.end("late-0", "terminated"))
        assert names(pool) == ["late"]

    def test_what_was_released_behind_consumed_ones_is_not_overlooked(self, pool: Pool) -> None:
        pool.put(*(record for number in range(4) for record in group_of(f"g{number}", 0)))
        first = pool.lease(LeaseSpec(consumer="trainer"))
        pool.acknowledge(pool.lease(LeaseSpec(consumer="trainer", limit=2)).id)
        pool.release(first.id)
        assert names(pool) == ["g0", "g3"]


class SelectionLaws:
    @pytest.mark.parametrize(
        ("wish", "left"),
        [
            ({"channel": "other"}, ["b"]),
            ({"task_ids": ("x",)}, ["a"]),
            ({"group_ids": ("b", "c")}, ["b", "c"]),
            ({"trajectory_ids": ("c-0",)}, ["c"]),
            ({"agents": ("codex",)}, ["a"]),
            ({"sources": ("eval",)}, ["a"]),
            ({"min_reward": 0.5}, ["b", "c"]),
            ({"max_reward": 0.5}, ["a"]),
            ({"min_policy_version": 4}, ["b", "c"]),
            ({"max_policy_version": 4}, ["a", "b"]),
            ({"tags": ("good",)}, ["b"]),
            ({"without_tags": ("good",)}, ["a", "c"]),
            ({"min_steps": 2}, []),
            ({"created_before": 50.0}, ["a"]),
            ({"created_after": 50.0}, ["b", "c"]),
            ({"verdicts": ("accept",)}, ["c"]),
            ({"statuses": ("truncated",)}, []),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("unit", ["group", "trajectory"])
    def test_a_selection_restricts_what_is_handed_over(self, pool: Pool, unit: str, wish: dict, left: list) -> None:
        for name, version, reward, channel in (("a", 3, 0.0, "c1"), ("b", 4, 1.0, "other"), ("c", 5, 1.0, "c1")):
            first = name == "a"
            info = TrajectoryInfo(
                id=f"{name}-0",
                group_id=name,
                task_id="x" if first else "y",
                agent="codex" if first else "",
                source="eval" if first else "rollout",
                created_at=10.0 if first else 90.0,
            )
            _, *rest = complete_trajectory(f"{name}-0", name, reward=reward, version=version)
            pool.put(GroupInfo(id=name, task_id=info.task_id, size=1, channel=channel), info, *rest)
        pool.put(Annotation.tag("trajectory", "b-0", "good"), Annotation.verdict("trajectory", "c-0", "accept"))
        taken = members(pool, unit=unit, selection=Selection(**wish))
        assert taken == [[f"{name}-0"] for name in left]

    def test_a_verdict_changes_the_next_lease_and_taking_it_back_does_too(self, pool: Pool) -> None:
        pool.put(*group_of("g", 0))
        pool.put(Annotation.verdict("trajectory", "g-0", "reject", "nonsense"))
        assert names(pool) == names(pool, unit="trajectory") == []
        assert consumption(pool).dropped == (("rejected", 2),)
        pool.put(Annotation.verdict("trajectory", "g-0", "clear"))
        assert names(pool) == ["g"]
        assert names(pool, unit="trajectory") == ["g-0"]

    def test_a_trajectory_of_which_a_step_is_rejected_is_rejected(self, pool: Pool) -> None:
        pool.put(*group_of("g", 0))
        step_id = pool.trajectory("g-0").steps[0].id
        pool.put(Annotation.verdict("step", step_id, "reject"), Annotation.verdict("trajectory", "g-0", "accept"))
        assert names(pool) == []
        assert pool.trajectory("g-0").verdict == "reject"

    def test_a_group_is_handed_over_without_a_rejected_member_only_if_that_many_are_enough(self, pool: Pool) -> None:
        pool.put(*group_of("exact", 0, 0, 0), *group_of("lenient", 0, 0, 0, min_size=2))
        pool.put(Annotation.verdict("trajectory", "exact-1", "reject"))
        pool.put(Annotation.verdict("trajectory", "lenient-1", "reject"))
        assert members(pool) == [["lenient-0", "lenient-2"]]
        assert consumption(pool).dropped == (("rejected", 2),)  # the group `exact`, and the member of `lenient`

    def test_a_tag_that_was_taken_away_selects_no_more(self, pool: Pool) -> None:
        pool.put(*group_of("g", 0), Annotation.tag("trajectory", "g-0", "good"))
        assert pool.trajectory("g-0").tags == ("good",)
        pool.put(Annotation.tag("trajectory", "g-0", "good", present=False))
        assert names(pool, selection=Selection(tags=("good",))) == []
        assert pool.trajectory("g-0").tags == ()


class StalenessLaws:
    def test_staleness_is_decided_at_hand_over_and_what_is_stale_is_dropped_and_counted(self, pool: Pool) -> None:
        pool.put(*group_of("old", 1), *group_of("new", 4))
        spec = {"max_staleness": 2}
        assert names(pool, "early", **spec) == ["old", "new"]
        pool.put(UpdateInfo(run="r", policy_version=5))
        assert names(pool, "late", **spec) == ["new"]
        assert consumption(pool, "late").dropped == (("stale", 1),)

    def test_a_given_version_counts_instead_of_the_newest_update(self, pool: Pool) -> None:
        pool.put(*group_of("g", 1), UpdateInfo(run="r", policy_version=9))
        assert names(pool, max_staleness=0, policy_version=1) == ["g"]

    def test_one_stale_trajectory_makes_an_exact_group_stale(self, pool: Pool) -> None:
        pool.put(*group_of("exact", 1, 5), *group_of("lenient", 1, 5, min_size=1))
        assert members(pool, max_staleness=1, policy_version=5) == [["lenient-1"]]


class SettlingLaws:
    def test_after_the_deadline_a_group_is_ready_with_fewer_if_it_allows_that(
        self, pool: Pool, clock: FakeClock
    ) -> None:
        pool.put(GroupInfo(id="g", task_id="", size=4, min_size=2, deadline=clock.now + 10))
        pool.put(*complete_trajectory("t0", "g"), *complete_trajectory("t1", "g"))
        assert names(pool) == []
        clock.advance(10)
        assert members(pool) == [["t0", "t1"]]

    def test_after_the_deadline_a_group_with_too_few_is_dropped_and_says_why(
        self, pool: Pool, clock: FakeClock
    ) -> None:
        pool.put(GroupInfo(id="g", task_id="", size=2, deadline=clock.now + 10), *complete_trajectory("t0", "g"))
        clock.advance(11)
        assert (pool.settle(), pool.settle()) == (1, 0)
        pool.put(*complete_trajectory("t1", "g"))
        assert names(pool) == []
        assert pool.stats().groups_dropped == (("deadline: 1 of 2 complete", 1),)

    def test_what_completes_after_the_deadline_does_not_change_a_settled_group(
        self, pool: Pool, clock: FakeClock
    ) -> None:
        pool.put(GroupInfo(id="g", task_id="", size=3, min_size=1, deadline=clock.now), *complete_trajectory("t0", "g"))
        assert members(pool, "one") == [["t0"]]
        pool.put(*complete_trajectory("t1", "g"))
        assert members(pool, "two") == [["t0"]]

    def test_a_group_that_is_given_up_counts_under_its_first_reason_and_never_becomes_ready(self, pool: Pool) -> None:
        pool.put(GroupInfo(id="g", task_id="", size=2), *complete_trajectory("t0", "g"))
        pool.drop_group("g", "its siblings are alike")
        pool.drop_group("g", "another reason")
        pool.put(*complete_trajectory("t1", "g"))
        assert names(pool) == []
        assert pool.refills() == []
        assert pool.stats().groups_dropped == (("its siblings are alike", 1),)
        assert pool.verify() == []

    def test_a_group_that_is_ready_or_unknown_cannot_be_given_up(self, pool: Pool) -> None:
        pool.put(*group_of("g", 0))
        with pytest.raises(Conflict, match="'g' is ready"):
            pool.drop_group("g", "too late")
        with pytest.raises(NotFound, match="no group 'h'"):
            pool.drop_group("h", "a typing mistake")
        assert names(pool) == ["g"]

    def test_a_lost_trajectory_asks_for_another_and_blocks_no_other_group(self, pool: Pool) -> None:
        pool.put(GroupInfo(id="torn", task_id="task", size=2, channel="c"), *complete_trajectory("t0", "torn"))
        pool.put(TrajectoryInfo(id="t1", group_id="torn"), *group_of("whole", 0))
        assert pool.refills() == []
        pool.put(Annotation.end("t1", "failed", "the sandbox died"))
        (refill,) = pool.refills("c")
        assert (refill.group_id, refill.task_id, refill.missing, refill.failed) == ("torn", "task", 1, 1)
        assert pool.refills("another") == []
        assert names(pool) == ["whole"]
        pool.put(*complete_trajectory("t2", "torn"))
        assert pool.refills() == []
        assert members(pool) == [["t0", "t2"]]

    def test_a_reward_of_zero_is_no_failure(self, pool: Pool) -> None:
        pool.put(GroupInfo(id="g", task_id="", size=1), *complete_trajectory("t", "g", reward=0.0))
        assert names(pool) == ["g"]


class HoldingLaws:
    def test_an_extended_lease_is_held_for_longer(self, pool: Pool, clock: FakeClock) -> None:
        pool.put(*group_of("g", 0))
        lease = pool.lease(LeaseSpec(consumer="trainer", seconds=60))
        clock.advance(50)
        assert pool.extend(lease.id, 60) == clock.now + 60
        clock.advance(50)
        assert names(pool) == []
        pool.acknowledge(lease.id)
        with pytest.raises(Conflict, match="acknowledged"):
            pool.extend(lease.id, 60)

    def test_a_lease_whose_units_went_to_another_cannot_be_extended(self, pool: Pool, clock: FakeClock) -> None:
        pool.put(*group_of("g", 0))
        lease = pool.lease(LeaseSpec(consumer="trainer", seconds=60))
        clock.advance(61)
        assert names(pool) == ["g"]
        with pytest.raises(Conflict, match="expired"):
            pool.extend(lease.id, 60)
        with pytest.raises(NotFound):
            pool.extend("nowhere", 60)

    def test_consumption_is_accounted_for_by_consumer_and_epoch(self, pool: Pool) -> None:
        pool.put(*group_of("a", 0, 0), *group_of("b", 0))
        pool.acknowledge(pool.lease(LeaseSpec(consumer="one")).id)
        pool.lease(LeaseSpec(consumer="one"))
        pool.lease(LeaseSpec(consumer="two", epoch=3, limit=2))
        first = Consumption(consumer="one", epoch=0, held=1, acknowledged=1, steps=2, tokens=8, dropped=())
        second = Consumption(consumer="two", epoch=3, held=2, acknowledged=0, steps=0, tokens=0, dropped=())
        assert pool.consumption() == [first, second]


class BacklogLaws:
    def test_the_backlog_is_what_a_lease_would_find(self, pool: Pool) -> None:
        for name in "abc":
            pool.put(*group_of(name, 0))
        pool.put(*group_of("elsewhere", 0, channel="other"))
        spec = LeaseSpec(consumer="trainer", selection=Selection(channel="default"))
        assert pool.backlog(spec, most=10) == 3
        lease = pool.lease(spec)
        assert pool.backlog(spec, most=10) == 2
        pool.acknowledge(lease.id)
        assert pool.backlog(spec, most=10) == 2
        pool.release(pool.lease(spec).id)
        assert pool.backlog(spec, most=10) == 2
        assert pool.backlog(spec.model_copy(update={"consumer": "another"}), most=10) == 3
        assert pool.backlog(spec.model_copy(update={"epoch": 1}), most=10) == 3

    def test_the_backlog_is_counted_no_further_than_asked(self, pool: Pool) -> None:
        for name in "abc":
            pool.put(*group_of(name, 0))
        assert pool.backlog(LeaseSpec(consumer="trainer"), most=2) == 2

    def test_counting_the_backlog_changes_nothing(self, pool: Pool) -> None:
        pool.put(*group_of("a", 0))
        before = pool.cursor()
        pool.backlog(LeaseSpec(consumer="trainer"), most=5)
        assert (pool.cursor(), pool.consumption()) == (before, [])
        assert names(pool) == ["a"]


class WaitingLaws:
    def test_a_lease_waits_for_what_is_appended_meanwhile(self, pool: Pool) -> None:
        timer = threading.Timer(0.2, lambda: pool.put(*group_of("g", 0)))
        timer.start()
        assert names(pool, wait=30) == ["g"]
        timer.join()

    def test_a_wait_that_is_over_gives_an_empty_lease(self, pool: Pool) -> None:
        assert names(pool, wait=0.05) == []

    def test_waiting_is_an_error_once_all_producers_are_gone(self, pool: Pool, clock: FakeClock) -> None:
        pool.heartbeat("rollout-1", 60)
        assert names(pool, wait=0.05) == []
        clock.advance(61)
        with pytest.raises(NoProducer, match="no producer is alive"):
            names(pool, wait=30)
        pool.heartbeat("rollout-1", 60)
        assert names(pool, wait=0.05) == []


class FeedLaws(OrderLaws, UnitLaws, SelectionLaws, StalenessLaws, SettlingLaws, HoldingLaws, BacklogLaws, WaitingLaws):
    pass
