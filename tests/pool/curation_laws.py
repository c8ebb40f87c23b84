"""The laws of curation in a pool: rules, saved selections, datasets."""

import pytest

from stepwell.curation.rules import Duplicates, Score, Truncation, ZeroAdvantage
from stepwell.curation.selection import Selection
from stepwell.errors import InvalidRequest, NotFound
from stepwell.pool.base import Pool
from stepwell.pool.frozen import DatasetDiff
from stepwell.pool.keeping import Retention
from stepwell.pool.lease import LeaseSpec
from stepwell.types import Annotation, GroupInfo, Record, TrajectoryInfo
from tests.pool.builders import complete_trajectory, make_step, ready_group


def members(pool: Pool, consumer: str = "trainer", **fields) -> list[list[str]]:
    groups = pool.lease(LeaseSpec(consumer=consumer, **{"limit": 100, **fields})).groups
    return [[trajectory.info.id for trajectory in group.trajectories] for group in groups]


def rewarded(name: str, *rewards: float, **fields) -> list[Record]:
    """A ready group with a trajectory for each of these rewards."""
    own = [complete_trajectory(f"{name}-{number}", name, reward=reward) for number, reward in enumerate(rewards)]
    info = GroupInfo(id=name, task_id="task", **{"size": len(rewards), **fields})
    return [info, *(record for taken in own for record in taken)]


class RuleLaws:
    def test_a_group_that_a_rule_refuses_is_dropped_with_its_reason_and_the_next_takes_its_place(
        self, pool: Pool
    ) -> None:
        pool.put(*rewarded("flat", 1.0, 1.0), *rewarded("good", 0.0, 1.0), *rewarded("also flat", 0.0, 0.0))
        wanted = Selection(rules=(ZeroAdvantage(),))
        assert members(pool, limit=1, selection=wanted) == [["good-0", "good-1"]]
        assert members(pool, selection=wanted) == []
        (own,) = pool.consumption()
        assert own.dropped == (("zero advantage", 2),)
        assert members(pool, "other") == [["flat-0", "flat-1"], ["good-0", "good-1"], ["also flat-0", "also flat-1"]]

    def test_members_that_a_rule_refuses_are_left_out_if_the_rest_is_enough(self, pool: Pool) -> None:
        pool.put(*rewarded("exact", 0.0, 1.0), *rewarded("lenient", 0.0, 1.0, min_size=1))
        lease = pool.lease(LeaseSpec(consumer="trainer", limit=9, selection=Selection(rules=(Duplicates(),))))
        assert [[one.info.id for one in group.trajectories] for group in lease.groups] == [["lenient-0"]]
        pool.acknowledge(lease.id)
        (own,) = pool.consumption()
        assert (own.acknowledged, own.steps, own.tokens, own.dropped) == (1, 1, 4, (("duplicate", 2),))

    def test_what_a_rule_dropped_is_looked_at_again_after_a_new_reward(self, pool: Pool) -> None:
        pool.put(*rewarded("g", 1.0, 1.0))
        wanted = Selection(rules=(ZeroAdvantage(),))
        assert members(pool, selection=wanted) == []
        pool.put(Annotation.reward("trajectory", "g-0", 0.0))
        assert members(pool, selection=wanted) == [["g-0", "g-1"]]

    def test_rules_hold_for_single_trajectories_too(self, pool: Pool) -> None:
        pool.put(TrajectoryInfo(id="cut"), make_step("cut", finish_reason="length"))
        pool.put(Annotation.reward("trajectory", "cut", 1.0), Annotation.end("cut", "truncated"))
        pool.put(*complete_trajectory("whole", None))
        assert members(pool, unit="trajectory", selection=Selection(rules=(Truncation(),))) == [["whole"]]


class SavedLaws:
    def test_a_saved_selection_is_given_by_name_and_its_latest_definition_counts(self, pool: Pool) -> None:
        pool.put(*rewarded("low", 0.0), *rewarded("high", 1.0))
        good = Selection(min_reward=0.5, rules=(Score(part="reward", min=0.5),), tags=())
        pool.save_selection("good", good)
        assert pool.selection("good") == good
        assert members(pool, selection="good") == [["high-0"]]
        pool.save_selection("good", Selection())
        assert members(pool, selection="good") == [["low-0"]]
        assert pool.selections() == ["good"]

    def test_a_deleted_selection_is_not_found(self, pool: Pool) -> None:
        pool.save_selection("s", Selection())
        pool.delete_selection("s")
        for ask in (pool.selection, pool.delete_selection):
            with pytest.raises(NotFound, match="'s'"):
                ask("s")
        with pytest.raises(NotFound, match="'s'"):
            members(pool, selection="s")


class DatasetLaws:
    def test_a_dataset_is_what_its_selection_wanted_and_says_where_it_comes_from(self, pool: Pool) -> None:
        pool.put(*rewarded("a", 0.0, 1.0), *rewarded("flat", 1.0, 1.0), *ready_group("b", size=1, version=3))
        wanted = Selection(task_ids=("task",), rules=(ZeroAdvantage(),))
        made = pool.freeze("train", wanted)
        assert (made.name, made.version, made.unit) == ("train", 1, "group")
        manifest = made.manifest
        assert (manifest.units, manifest.trajectories, manifest.steps, manifest.tokens) == (2, 3, 3, 12)
        assert (manifest.policy_version_min, manifest.policy_version_max, manifest.reward_mean) == (0, 3, 2 / 3)
        assert (manifest.selection, manifest.cursor) == (wanted, pool.stats().cursor)
        assert manifest.software.startswith("stepwell ")
        assert pool.dataset("train") == pool.dataset("train@1") == made
        assert [group.info.id for group in pool.scan_dataset("train")] == ["a", "b"]
        assert next(pool.scan_dataset("train")).trajectories == pool.group("a").trajectories

    def test_freezing_what_has_not_changed_makes_no_version_and_its_digest_depends_on_content_alone(
        self, pool: Pool
    ) -> None:
        pool.put(*rewarded("a", 0.0, 1.0))
        first = pool.freeze("one", Selection())
        pool.put(TrajectoryInfo(id="other"))
        assert pool.freeze("one", Selection()) == first
        assert pool.freeze("two", Selection(task_ids=("task",))).digest == first.digest
        assert [(one.name, one.version) for one in pool.datasets()] == [("one", 1), ("two", 1)]

    def test_versions_can_be_compared_and_a_later_reward_shows(self, pool: Pool) -> None:
        pool.put(*rewarded("a", 0.0), *rewarded("b", 1.0), *rewarded("c", 1.0))
        pool.freeze("d", Selection(group_ids=("a", "b")))
        pool.put(Annotation.reward("trajectory", "b-0", 0.5))
        second = pool.freeze("d", Selection(group_ids=("b", "c")))
        assert second.version == 2
        diff = pool.dataset_diff("d@1", "d@2")
        assert diff == DatasetDiff(added=("c-0",), removed=("a-0",), changed=("b-0",))
        assert pool.dataset_diff("d@2", "d") == DatasetDiff(added=(), removed=(), changed=())

    def test_a_dataset_can_be_leased_from_in_each_epoch_and_nothing_else_comes(self, pool: Pool) -> None:
        pool.put(*rewarded("a", 0.0), *rewarded("b", 1.0))
        pool.freeze("d", Selection(group_ids=("b",)))
        pool.put(*rewarded("c", 1.0))
        for epoch in range(2):
            assert members(pool, dataset="d", epoch=epoch) == [["b-0"]]
            assert members(pool, dataset="d@1", epoch=epoch) == []

    def test_of_a_group_a_dataset_hands_over_the_members_that_it_froze(self, pool: Pool) -> None:
        pool.put(*rewarded("g", 0.0, 1.0, 1.0, min_size=1))
        made = pool.freeze("d", Selection(min_reward=0.5))
        assert made.manifest.trajectories == 2
        assert members(pool, dataset="d") == [["g-1", "g-2"]]

    def test_a_dataset_of_trajectories_hands_over_trajectories(self, pool: Pool) -> None:
        pool.put(*rewarded("g", 0.0, 1.0))
        pool.freeze("d", Selection(min_reward=0.5), unit="trajectory")
        assert members(pool, dataset="d") == [["g-1"]]

    def test_what_a_dataset_holds_is_not_forgotten(self, pool: Pool) -> None:
        pool.put(*rewarded("a", 0.0), *rewarded("b", 1.0))
        pool.freeze("d", Selection(group_ids=("a",)))
        pool.prune(Retention(all_selected=True))
        assert [group.info.id for group in pool.scan_dataset("d")] == ["a"]
        with pytest.raises(NotFound):
            pool.group("b")

    def test_nothing_and_bad_names_are_refused_and_unknown_ones_not_found(self, pool: Pool) -> None:
        with pytest.raises(InvalidRequest, match="nothing"):
            pool.freeze("d", Selection())
        pool.put(*rewarded("a", 0.0))
        for name in ("", "a@b"):
            with pytest.raises(InvalidRequest, match="name"):
                pool.freeze(name, Selection())
        for ask in (pool.dataset, lambda name: members(pool, dataset=name), lambda name: pool.dataset_diff(name, "d")):
            with pytest.raises(NotFound, match="nowhere"):
                ask("nowhere")


def offered(pool: Pool, unit: str = "group", **wish) -> list[list[str]]:
    found = pool.scan_ready(Selection(**wish), unit=unit)
    return [[trajectory.info.id for trajectory in group.trajectories] for group in found]


class PreviewLaws:
    def test_a_count_is_the_length_of_the_list(self, pool: Pool) -> None:
        pool.put(*rewarded("a", 0.0, 1.0), *rewarded("b", 1.0), TrajectoryInfo(id="open", agent="x"))
        pool.put(Annotation.verdict("trajectory", "a-0", "reject"), Annotation.tag("trajectory", "b-0", "good"))
        pool.put(make_step("open", request="words within"))
        assert pool.count() == 4
        wishes = ({}, {"min_reward": 1.0}, {"tags": ("good",)}, {"group_ids": ("a",)}, {"agents": ("x",)})
        for wish in (*wishes, {"text": "words"}, {"verdicts": ("reject",)}, {"min_reward": 2.0}):
            assert pool.count(Selection(**wish)) == len(pool.trajectories(Selection(**wish))), wish

    def test_what_is_offered_is_what_a_new_consumer_is_handed(self, pool: Pool) -> None:
        pool.put(*rewarded("a", 0.0, 1.0), *rewarded("b", 1.0, 1.0, min_size=1), *rewarded("c", 1.0, 0.5))
        pool.put(*complete_trajectory("alone", None), TrajectoryInfo(id="open"))
        pool.put(Annotation.verdict("trajectory", "b-0", "reject"), Annotation.verdict("trajectory", "c-0", "reject"))
        for number, wish in enumerate(({}, {"min_reward": 0.5}, {"group_ids": ("a", "b")}, {"channel": "none"})):
            for unit in ("group", "trajectory"):
                wanted = Selection(**wish)
                served = members(pool, f"{unit}-{number}", unit=unit, selection=wanted)
                assert sorted(offered(pool, unit, **wish)) == sorted(served)
                count = pool.count_ready(wanted, unit=unit)
                assert (count.units, count.trajectories) == (len(served), sum(map(len, served)))

    def test_what_is_offered_is_whole_and_of_the_newest_policy_first(self, pool: Pool) -> None:
        for version in range(30):
            pool.put(*ready_group(f"g{version}", size=1, version=version % 15))
        found = list(pool.scan_ready(Selection(), limit=21))
        versions = [group.trajectories[0].steps[0].policy_version_min for group in found]
        assert len(found) == 21
        assert versions == sorted(versions, reverse=True)
        assert found[0] == pool.group(found[0].info.id)

    def test_a_preview_applies_no_rule_and_takes_nothing(self, pool: Pool) -> None:
        pool.put(*rewarded("flat", 1.0, 1.0))
        rules = (ZeroAdvantage(),)
        assert offered(pool, rules=rules) == offered(pool, rules=rules) == [["flat-0", "flat-1"]]
        assert pool.consumption() == []


class CurationLaws(RuleLaws, SavedLaws, DatasetLaws, PreviewLaws):
    pass
