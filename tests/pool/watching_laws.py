"""The laws of watching a pool: what came in when, and a trajectory's steps a few at a time."""

import pytest

from stepwell.errors import InvalidRequest
from stepwell.pool.activity import Activity, Arrivals, Origin
from stepwell.pool.base import Pool
from stepwell.types import Annotation, GroupInfo, TrajectoryInfo
from tests.pool.builders import complete_trajectory, make_step


def percentiles(activity: Activity) -> list[tuple[int, float | None, float | None]]:
    return [(interval.steps, interval.latency_p50, interval.latency_p95) for interval in activity.intervals]


class ActivityLaws:
    def test_each_step_counts_in_the_interval_in_which_it_was_completed(self, pool: Pool) -> None:
        pool.put(TrajectoryInfo(id="t", created_at=5.0))
        times = [9.9, 10.0, 19.9, 20.0, 29.9, 39.9, 40.0]
        pool.put(*(make_step("t", index, created_at=at) for index, at in enumerate(times)))
        activity = pool.activity(10.0, 40.0, parts=3)
        assert [(part.start, part.steps, part.response_tokens) for part in activity.intervals] == [
            (10.0, 2, 4),
            (20.0, 2, 4),
            (30.0, 1, 2),
        ]
        assert activity.finishes == (("stop", 5),)

    def test_percentiles_are_the_latencies_of_steps_at_the_nearest_rank(self, pool: Pool) -> None:
        pool.put(TrajectoryInfo(id="t"))
        latencies = [*range(20, 0, -1)]
        pool.put(*(make_step("t", index, created_at=1.0, latency=took) for index, took in enumerate(latencies)))
        assert percentiles(pool.activity(0.0, 4.0, parts=2)) == [(20, 10.0, 19.0), (0, None, None)]

    def test_from_the_beginning_is_from_the_first_that_came(self, pool: Pool) -> None:
        assert percentiles(pool.activity(None, 10.0, parts=2)) == [(0, None, None)] * 2
        pool.put(TrajectoryInfo(id="t", created_at=4.0), make_step("t", created_at=6.0))
        activity = pool.activity(None, 10.0, parts=2)
        assert (activity.since, [part.steps for part in activity.intervals]) == (4.0, [1, 0])

    def test_trajectories_are_told_apart_by_where_they_come_from(self, pool: Pool) -> None:
        pool.put(GroupInfo(id="g", task_id="", size=9, channel="c"))
        pool.put(*(TrajectoryInfo(id=f"t{number}", group_id="g", agent="a", created_at=5.0) for number in range(3)))
        pool.put(TrajectoryInfo(id="old", created_at=1.0), TrajectoryInfo(id="new", source="eval", created_at=5.0))
        pool.put(make_step("t0"), make_step("t1"), Annotation.end("t1", "failed", "lost"))
        ours = Origin(source="gateway", agent="a", channel="c")
        other = Origin(source="eval", agent="", channel="default")
        assert pool.activity(2.0, 9.0).arrivals == (
            Arrivals(origin=ours, trajectories=3, failed=1, steps=2, response_tokens=4),
            Arrivals(origin=other, trajectories=1, failed=0, steps=0, response_tokens=0),
        )
        assert pool.origins() == [other, Origin(source="gateway", agent="", channel="default"), ours]

    def test_what_went_wrong_is_counted_by_what_was_said_of_it(self, pool: Pool) -> None:
        pool.put(*(TrajectoryInfo(id=f"t{number}", created_at=5.0) for number in range(4)))
        pool.put(*(Annotation.end(f"t{number}", "failed", "503" if number else "") for number in range(3)))
        pool.put(Annotation.end("t3", "truncated", "a limit"))
        pool.put(GroupInfo(id="g", task_id="", size=1, created_at=5.0), TrajectoryInfo(id="u", created_at=99.0))
        pool.drop_group("g", "alike")
        activity = pool.activity(0.0, 9.0)
        assert (activity.failures, activity.dropped) == ((("503", 2), ("", 1)), (("alike", 1),))
        assert pool.activity(6.0, 9.0).failures == pool.activity(6.0, 9.0).dropped == ()

    def test_what_is_open_is_listed_newest_first_with_its_last_step_whenever_it_began(self, pool: Pool) -> None:
        pool.put(TrajectoryInfo(id="idle", created_at=1.0), TrajectoryInfo(id="busy", agent="a", created_at=2.0))
        pool.put(*complete_trajectory("done", None))
        pool.put(make_step("busy", 0, created_at=7.0), make_step("busy", 1, created_at=8.0))
        activity = pool.activity(100.0, 200.0)
        assert activity.open == 2
        seen = [(one.info.id, one.info.agent, one.steps, one.last_step_at) for one in activity.sessions]
        assert seen == [("busy", "a", 2, 8.0), ("idle", "", 0, None)]

    def test_no_parts_are_an_invalid_request(self, pool: Pool) -> None:
        with pytest.raises(InvalidRequest, match="limit"):
            pool.activity(0.0, 1.0, parts=0)


class StepLaws:
    def test_steps_are_read_from_any_index_on_as_they_were_put(self, pool: Pool) -> None:
        pool.put(TrajectoryInfo(id="t"), TrajectoryInfo(id="u"), make_step("u"))
        taken = [make_step("t", 2 * index, prompt=[*range(1, 4 + index)]) for index in range(150)]
        for step in (*taken[75:], *taken[:75]):
            pool.put(step)
        assert pool.steps("t", first=200, limit=3) == taken[100:103]
        assert pool.steps("t", first=199, limit=1) == taken[100:101]
        assert pool.steps("t", limit=1000) == taken
        assert pool.steps("t", first=299) == pool.steps("nowhere") == pool.steps("\0") == []

    def test_an_outline_has_all_steps_by_index_without_what_makes_them_large(self, pool: Pool) -> None:
        pool.put(TrajectoryInfo(id="t"))
        steps = [make_step("t", 1, version=3, parent_id="p", fork="client", created_at=7.0, latency=0.5)]
        steps.append(make_step("t", 0, prompt=(1, 2, 3), side="title", finish_reason="length"))
        pool.put(*steps)
        outline = pool.outline("t")
        assert [step.index for step in outline] == [0, 1]
        for one, step in zip(outline, reversed(steps), strict=True):
            assert (one.prompt_tokens, one.response_tokens) == (len(step.prompt_ids), len(step.response_ids))
            names = ("id", "parent_id", "fork", "side", "finish_reason", "policy_version_min", "created_at", "latency")
            assert [getattr(one, name) for name in names] == [getattr(step, name) for name in names]
        assert pool.outline("nowhere") == pool.outline("\0") == []

    def test_sets_of_siblings_are_found_by_what_they_were_forked_from(self, pool: Pool) -> None:
        pool.put(TrajectoryInfo(id="trunk"), GroupInfo(id="plain", task_id="", size=1))
        for index in range(3):
            pool.put(GroupInfo(id=f"at-{index}", task_id="", size=2, origin_id="trunk", origin_index=index))
        pool.put(GroupInfo(id="elsewhere", task_id="", size=2, origin_id="other", origin_index=0))
        ids = [found.info.id for _, found in pool.groups(origin="trunk", limit=2)]
        assert ids == ["at-2", "at-1"]
        assert pool.groups(origin="nowhere") == pool.groups(origin="\0") == []
        assert len(pool.groups()) == 5


class WatchingLaws(ActivityLaws, StepLaws):
    pass
