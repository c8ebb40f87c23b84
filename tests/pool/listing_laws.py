"""The laws of looking through a pool: pages, searches, the log."""

import pytest

from stepwell.curation.selection import Selection
from stepwell.errors import InvalidRequest, NotFound
from stepwell.pool.base import Pool
from stepwell.pool.lease import LeaseSpec
from stepwell.types import Annotation, GroupInfo, Record, TrajectoryInfo, UpdateInfo
from tests.pool.builders import complete_trajectory, make_step, ready_group


def found(pool: Pool, **wish) -> list[str]:
    return [summary.info.id for _, summary in pool.trajectories(Selection(**wish))]


class PageLaws:
    def test_pages_are_stable_while_more_arrives(self, pool: Pool) -> None:
        pool.put(*(TrajectoryInfo(id=f"t{number}", agent="a") for number in range(5)))
        first = pool.trajectories(Selection(agents=("a",)), limit=2)
        pool.put(TrajectoryInfo(id="newer", agent="a"))
        second = pool.trajectories(Selection(agents=("a",)), before=first[-1][0], limit=9)
        assert [summary.info.id for _, summary in [*first, *second]] == ["t4", "t3", "t2", "t1", "t0"]

    def test_without_a_selection_everything_is_listed_and_a_selection_leaves_out_what_was_rejected(
        self, pool: Pool
    ) -> None:
        pool.put(TrajectoryInfo(id="a"), TrajectoryInfo(id="b"), Annotation.verdict("trajectory", "a", "reject"))
        assert [summary.info.id for _, summary in pool.trajectories()] == ["b", "a"]
        assert found(pool) == ["b"]
        assert [trajectory.info.id for trajectory in pool.scan()] == ["a", "b"]
        assert [trajectory.info.id for trajectory in pool.scan(Selection())] == ["b"]

    def test_a_scan_gives_all_whole_trajectories_oldest_first(self, pool: Pool) -> None:
        pool.put(*(record for number in range(150) for record in complete_trajectory(f"t{number}", None)))
        scanned = list(pool.scan(Selection(min_reward=1.0)))
        assert [trajectory.info.id for trajectory in scanned] == [f"t{number}" for number in range(150)]
        assert scanned[7] == pool.trajectory("t7")

    def test_groups_are_listed_with_their_state(self, pool: Pool) -> None:
        pool.put(*ready_group("done", size=2, version=3), GroupInfo(id="open", task_id="", size=2, channel="c"))
        pool.put(TrajectoryInfo(id="lost", group_id="open"), Annotation.end("lost", "failed"))
        pool.put(GroupInfo(id="late", task_id="", size=1, deadline=1.0))
        pool.settle()
        lines = [
            (line.info.id, line.state, line.why, line.trajectories, line.complete, line.failed, line.policy_version_min)
            for _, line in pool.groups()
        ]
        assert lines == [
            ("late", "dropped", "deadline: 0 of 1 complete", 0, 0, 0, None),
            ("open", "open", "", 1, 0, 1, None),
            ("done", "ready", "", 2, 2, 0, 3),
        ]
        assert [line.info.id for _, line in pool.groups("c")] == ["open"]
        ((cursor, _),) = pool.groups(limit=1)
        assert [line.info.id for _, line in pool.groups(before=cursor, limit=1)] == ["open"]

    @pytest.mark.parametrize("limit", [0, -1])
    def test_a_page_of_nothing_is_an_invalid_request(self, pool: Pool, limit: int) -> None:
        for ask in (pool.trajectories, pool.groups, pool.log):
            with pytest.raises(InvalidRequest, match="limit"):
                ask(limit=limit)

    @pytest.mark.parametrize("name", ["a\0", "\ud800"])
    def test_names_that_no_pool_can_hold_are_an_invalid_request_and_no_failure(self, pool: Pool, name: str) -> None:
        for field in ("task_ids", "group_ids", "trajectory_ids", "agents", "sources", "tags", "without_tags"):
            with pytest.raises(InvalidRequest, match=field):
                pool.trajectories(Selection(**{field: (name,)}))
        wishes = ({"consumer": name}, {"selection": name}, {"selection": Selection(channel=name)}, {"dataset": name})
        for wish in wishes:
            with pytest.raises(ValueError):
                pool.lease(LeaseSpec(**{"consumer": "c", **wish}))
        assert pool.groups(name) == pool.refills(name) == []


class TextLaws:
    def test_trajectories_are_found_by_the_words_of_one_of_their_steps(self, pool: Pool) -> None:
        pool.put(TrajectoryInfo(id="a"), make_step("a", request='{"content": "Where is the Eiffel Tower?"}'))
        pool.put(TrajectoryInfo(id="b"), make_step("b", response='{"content": "The tower\\nis in Pisa"}'))
        assert found(pool, text="tower") == ["b", "a"]
        assert found(pool, text="eiffel TOWER") == ["a"]
        assert found(pool, text="is pisa") == ["b"]
        assert found(pool, text="eiffel pisa") == []

    def test_what_is_appended_after_a_search_is_found_by_the_next(self, pool: Pool) -> None:
        assert found(pool, text="later") == []
        pool.put(TrajectoryInfo(id="a"), make_step("a", request="later on"))
        assert found(pool, text="later") == ["a"]

    @pytest.mark.parametrize("text", ['"', "a\"b' OR 1", "*", "   ", "(", "naïve 東京", "\0", "a\0naïve"])
    def test_no_text_breaks_a_search(self, pool: Pool, text: str) -> None:
        pool.put(TrajectoryInfo(id="a"), make_step("a", request="a naïve b or 1 in 東京 \0 \ud800"))
        assert found(pool, text=text) == ["a"]


class LogLaws:
    def test_the_log_gives_every_record_once_in_the_order_in_which_it_was_appended(self, pool: Pool) -> None:
        records: list[Record] = [*ready_group("g"), UpdateInfo(run="r", policy_version=1, metrics=(("loss", 0.5),))]
        step = next(record for record in records if record.id.startswith("step"))
        records.append(Annotation.tag("step", step.id, "good"))
        pool.put(*records)
        read: list[Record] = []
        after = 0
        while page := pool.log(after=after, limit=3):
            read += [record for _, record in page]
            after = page[-1][0]
        assert read == records

    def test_steps_in_the_log_are_exact_also_where_trajectories_take_turns(self, pool: Pool) -> None:
        pool.put(TrajectoryInfo(id="a"), TrajectoryInfo(id="b"))
        taken = [
            make_step(owner, index, prompt=[*range(1, 4 + index * 3)]) for index in range(150) for owner in ("a", "b")
        ]
        for step in taken:
            pool.put(step)
        assert [record for _, record in pool.log(after=2, limit=1000)] == taken
        assert [record for _, record in pool.log(after=250, limit=5)] == taken[248:253]
        assert pool.step(taken[-1].id) == taken[-1]

    def test_notes_are_the_whole_history_of_a_trajectory(self, pool: Pool) -> None:
        pool.put(TrajectoryInfo(id="t"), step := make_step("t"))
        said = [
            Annotation.reward("trajectory", "t", 0.0),
            Annotation.reward("step", step.id, 0.5),
            Annotation.reward("trajectory", "t", 1.0),
            Annotation.verdict("trajectory", "t", "accept"),
            Annotation(target="step", target_id=step.id, kind="note", name="review", text="well done"),
        ]
        pool.put(*said)
        assert pool.notes("t") == said
        assert pool.trajectory("t").reward == 1.5
        assert pool.trajectory("t").annotations == (said[-1],)
        with pytest.raises(NotFound):
            pool.notes("nowhere")


class ListingLaws(PageLaws, TextLaws, LogLaws):
    pass
