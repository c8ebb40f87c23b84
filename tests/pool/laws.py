"""The laws of a pool, written against its protocol: every store has to obey all of them."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from stepwell.curation.selection import Selection
from stepwell.errors import Conflict, InvalidRecord, InvalidRequest, NotFound, StepwellError
from stepwell.pool.base import Pool, Receipt
from stepwell.pool.lease import LeaseSpec
from stepwell.types import Annotation, GroupInfo, Record, Step, TrajectoryInfo, UpdateInfo
from tests.pool.builders import complete_trajectory, make_step, ready_group
from tests.pool.conftest import FakeClock


def append(pool: Pool, *records: Record) -> list[Receipt]:
    return pool.append(records).result(timeout=60)


def refusal(pool: Pool, record: Record) -> StepwellError | None:
    (receipt,) = append(pool, record)
    assert (receipt.cursor is None) == (receipt.error is not None)
    return receipt.error


def leased(pool: Pool, consumer: str = "trainer", limit: int = 10, **wishes) -> list[str]:
    of_spec = {name: wishes.pop(name) for name in [*wishes] if name in LeaseSpec.model_fields}
    spec = LeaseSpec(consumer=consumer, limit=limit, selection=Selection(**wishes), **of_spec)
    return [group.info.id for group in pool.lease(spec).groups]


class AppendLaws:
    def test_what_was_put_is_read_back_equal(self, pool: Pool) -> None:
        info, step = TrajectoryInfo(id="t", task_id="Ω"), make_step("t", request='{"a": 1}', response="{}")
        pool.put(info, step)
        assert pool.step(step.id) == step
        assert pool.trajectory("t").info == info
        assert pool.trajectory("t").steps == (step,)

    def test_an_empty_append_resolves_to_no_receipts(self, pool: Pool) -> None:
        assert append(pool) == []

    def test_receipts_are_in_order_with_growing_cursors_shared_by_all_kinds(self, pool: Pool) -> None:
        records = [*ready_group("g"), UpdateInfo(run="r", policy_version=1)]
        receipts = append(pool, *records)
        assert [receipt.id for receipt in receipts] == [record.id for record in records]
        cursors = [receipt.cursor for receipt in receipts]
        assert cursors == sorted(set(cursors))
        assert pool.stats().cursor == cursors[-1]

    def test_the_same_record_again_is_a_no_op_with_the_first_cursor(self, pool: Pool) -> None:
        records = [*ready_group("g"), UpdateInfo(run="r", policy_version=1, metrics=(("loss", math.nan),))]
        first, before = append(pool, *records), pool.stats()
        again = append(pool, *records)
        assert [(r.id, r.cursor, r.duplicate, r.error) for r in again] == [(r.id, r.cursor, True, None) for r in first]
        assert pool.stats() == before

    def test_the_same_record_twice_in_one_call_is_stored_once(self, pool: Pool) -> None:
        info = TrajectoryInfo(id="t")
        first, second = append(pool, info, info)
        assert (second.cursor, second.duplicate) == (first.cursor, True)
        assert pool.stats().trajectories == 1

    def test_a_step_that_was_stored_stays_a_duplicate_after_the_trajectory_has_ended(self, pool: Pool) -> None:
        step = make_step("t")
        pool.put(TrajectoryInfo(id="t"), step, Annotation.end("t", "terminated"))
        assert append(pool, step)[0].duplicate

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            (GroupInfo(id="x", task_id="a", size=1), GroupInfo(id="x", task_id="b", size=1)),
            (TrajectoryInfo(id="x", agent="a"), TrajectoryInfo(id="x", agent="b")),
            (UpdateInfo(id="x", run="r", policy_version=1), UpdateInfo(id="x", run="r", policy_version=2)),
        ],
        ids=lambda record: type(record).__name__,
    )
    def test_the_same_id_with_other_content_is_a_conflict(self, pool: Pool, first: Record, second: Record) -> None:
        pool.put(first)
        assert isinstance(refusal(pool, second), Conflict)

    def test_a_step_with_other_tokens_logprobs_or_texts_is_a_conflict(self, pool: Pool) -> None:
        step = make_step("t")
        pool.put(TrajectoryInfo(id="t"), step)
        for change in ({"prompt_ids": [1, 3]}, {"response_ids": [7, 9]}, {"logprobs": [-0.5, -0.3]}, {"request": "x"}):
            assert isinstance(refusal(pool, replace(step, **change)), Conflict)
        assert pool.step(step.id) == step

    def test_an_annotation_that_moves_to_another_target_is_a_conflict(self, pool: Pool) -> None:
        note = Annotation.reward("trajectory", "t", 1.0)
        pool.put(TrajectoryInfo(id="t"), TrajectoryInfo(id="u"), note)
        assert isinstance(refusal(pool, replace(note, target_id="u")), Conflict)

    def test_a_second_step_at_the_same_index_is_a_conflict_also_within_one_call(self, pool: Pool) -> None:
        pool.put(TrajectoryInfo(id="t"))
        first, second = append(pool, make_step("t"), make_step("t"))
        assert first.error is None
        assert isinstance(second.error, Conflict)
        assert isinstance(refusal(pool, make_step("t")), Conflict)

    def test_a_step_after_the_end_is_a_conflict_also_within_one_call(self, pool: Pool) -> None:
        _, end, step = append(pool, TrajectoryInfo(id="t"), Annotation.end("t", "failed"), make_step("t"))
        assert end.error is None
        assert isinstance(step.error, Conflict)
        assert isinstance(refusal(pool, make_step("t", 1)), Conflict)

    def test_a_second_end_is_a_conflict_unless_it_says_the_same(self, pool: Pool) -> None:
        pool.put(TrajectoryInfo(id="t"), Annotation.end("t", "truncated"))
        assert isinstance(refusal(pool, Annotation.end("t", "failed")), Conflict)
        assert refusal(pool, Annotation.end("t", "truncated")) is None
        assert pool.trajectory("t").status == "truncated"

    @pytest.mark.parametrize(
        "orphan",
        [
            TrajectoryInfo(group_id="nowhere"),
            make_step("nowhere"),
            Annotation.reward("step", "nowhere", 1.0),
            Annotation.reward("trajectory", "nowhere", 1.0),
            Annotation.end("nowhere", "failed"),
        ],
        ids=["trajectory", "step", "step reward", "trajectory reward", "end"],
    )
    def test_a_record_about_something_unknown_is_not_found(self, pool: Pool, orphan: Record) -> None:
        assert isinstance(refusal(pool, orphan), NotFound)

    def test_a_record_sees_only_those_before_it(self, pool: Pool) -> None:
        early, info, late = append(pool, make_step("t"), TrajectoryInfo(id="t"), make_step("t"))
        assert isinstance(early.error, NotFound)
        assert info.error is None
        assert late.error is None

    def test_a_refused_record_leaves_the_others_of_its_call_alone_and_takes_no_cursor(self, pool: Pool) -> None:
        good = [TrajectoryInfo(id="t"), make_step("t", 0), make_step("t", 1)]
        receipts = append(pool, good[0], good[1], make_step("t", 0), make_step("u"), good[2])
        assert [receipt.error is None for receipt in receipts] == [True, True, False, False, True]
        assert [receipt.cursor for receipt in receipts if receipt.cursor] == [1, 2, 3]
        assert pool.trajectory("t").steps == (good[1], good[2])

    def test_put_raises_the_first_refusal(self, pool: Pool) -> None:
        with pytest.raises(NotFound, match="nowhere"):
            pool.put(TrajectoryInfo(id="t"), make_step("nowhere"))
        assert pool.trajectory("t").steps == ()

    def test_steps_may_arrive_in_any_order_and_are_read_in_that_of_their_index(self, pool: Pool) -> None:
        steps = [make_step("t", index, prompt=range(1, 3 + 4 * index)) for index in range(4)]
        pool.put(TrajectoryInfo(id="t"), steps[2], steps[0], steps[3], steps[1])
        assert pool.trajectory("t").steps == tuple(steps)
        assert [pool.step(step.id) for step in steps] == steps

    @pytest.mark.parametrize("text", ["a\0b", "a\ud800b"], ids=["NUL", "lone surrogate"])
    def test_a_database_text_with_nul_or_a_lone_surrogate_is_refused(self, pool: Pool, text: str) -> None:
        assert isinstance(refusal(pool, TrajectoryInfo(id="t", task_id=text)), InvalidRecord)
        assert refusal(pool, TrajectoryInfo(id="t")) is None

    def test_a_reference_with_a_lone_surrogate_is_refused_without_harm_to_others(self, pool: Pool) -> None:
        odd = "t\ud800"
        orphans = [make_step(odd), Annotation.end(odd, "failed"), TrajectoryInfo(group_id=odd)]
        *refused, fine = append(pool, *orphans, TrajectoryInfo(id="t"))
        assert all(isinstance(receipt.error, InvalidRecord) for receipt in refused)
        assert fine.error is None

    def test_request_and_response_keep_lone_surrogates_and_nul(self, pool: Pool) -> None:
        step = make_step("t", request='{"text": "\ud83d\0 é\udc00"}', response="\udfff")
        pool.put(TrajectoryInfo(id="t"), step)
        assert pool.step(step.id) == step

    def test_a_number_that_no_database_holds_is_refused_without_harm_to_others(self, pool: Pool) -> None:
        pool.put(TrajectoryInfo(id="t"))
        huge, endless, fine = append(
            pool, make_step("t", version=2**63), make_step("t", latency=math.inf), make_step("t")
        )
        assert isinstance(huge.error, InvalidRecord)
        assert isinstance(endless.error, InvalidRecord)
        assert fine.error is None

    def test_a_retry_that_only_has_a_later_time_is_a_duplicate(self, pool: Pool) -> None:
        info, step = TrajectoryInfo(id="t", created_at=1.0), make_step("t", id="s", created_at=2.0)
        pool.put(info, step)
        again = append(pool, replace(info, created_at=3.0), replace(step, created_at=4.0))
        assert [(receipt.duplicate, receipt.error) for receipt in again] == [(True, None)] * 2
        assert pool.step("s").created_at == 2.0

    def test_concurrent_appends_all_arrive_once(self, pool: Pool) -> None:
        pool.put(*(TrajectoryInfo(id=f"t{number}") for number in range(8)))

        def fill(number: int) -> None:
            for index in range(20):
                pool.put(make_step(f"t{number}", index, prompt=range(1, 5 + index)))

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(fill, range(8)))
        assert pool.stats().steps == 160
        for number in range(8):
            assert [step.index for step in pool.trajectory(f"t{number}").steps] == list(range(20))


class ReadLaws:
    def test_unknown_ids_are_not_found(self, pool: Pool) -> None:
        for read in (pool.step, pool.trajectory, pool.group):
            with pytest.raises(NotFound, match="nowhere"):
                read("nowhere")

    @pytest.mark.parametrize("name", ["a\0b", "a\ud800b"], ids=["NUL", "lone surrogate"])
    def test_an_id_that_no_database_could_hold_is_not_found(self, pool: Pool, name: str) -> None:
        for find in (pool.step, pool.trajectory, pool.group, pool.acknowledge, pool.release):
            with pytest.raises(NotFound):
                find(name)
        assert pool.updates(name) == []
        assert pool.release_all(name) == 0

    def test_an_empty_pool_counts_zero(self, pool: Pool) -> None:
        stats = pool.stats()
        assert (stats.cursor, stats.steps, stats.prompt_tokens, stats.policy_version) == (0, 0, 0, 0)
        assert stats.trajectories_by_status == ()
        assert pool.trajectories() == []
        assert pool.updates() == []

    def test_stats_count_everything(self, pool: Pool) -> None:
        pool.put(*ready_group("g", size=2, version=3), TrajectoryInfo(id="open"), make_step("open", prompt=range(1, 6)))
        pool.put(UpdateInfo(run="r", policy_version=5), GroupInfo(id="waiting", task_id="", size=1))
        stats = pool.stats()
        assert (stats.groups, stats.groups_ready) == (2, 1)
        assert (stats.trajectories, stats.trajectories_rewarded) == (3, 2)
        assert dict(stats.trajectories_by_status) == {"open": 1, "terminated": 2}
        assert (stats.steps, stats.prompt_tokens, stats.response_tokens) == (3, 2 + 2 + 5, 6)
        assert (stats.annotations, stats.updates, stats.policy_version) == (4, 1, 5)

    def test_the_listing_pages_from_the_newest_to_the_oldest(self, pool: Pool) -> None:
        pool.put(*(TrajectoryInfo(id=f"t{number}") for number in range(5)))
        first = pool.trajectories(limit=2)
        second = pool.trajectories(before=first[-1][0], limit=2)
        last = pool.trajectories(before=second[-1][0], limit=2)
        assert [[line.info.id for _, line in page] for page in (first, second, last)] == [
            ["t4", "t3"],
            ["t2", "t1"],
            ["t0"],
        ]
        with pytest.raises(InvalidRequest):
            pool.trajectories(limit=0)

    def test_a_summary_agrees_with_the_trajectory(self, pool: Pool) -> None:
        pool.put(TrajectoryInfo(id="t"), make_step("t", 0, version=4), make_step("t", 1, version=2))
        ((_, bare),) = pool.trajectories()
        assert (bare.status, bare.reward, bare.steps, bare.response_tokens) == ("open", None, 2, 4)
        assert (bare.policy_version_min, bare.policy_version_max) == (2, 4)
        pool.put(Annotation.reward("trajectory", "t", 1.0), Annotation.reward("trajectory", "t", 0.25, "format"))
        pool.put(Annotation.end("t", "truncated"))
        ((_, line),) = pool.trajectories()
        whole = pool.trajectory("t")
        assert (line.info, line.status, line.reward) == (whole.info, whole.status, whole.reward)
        assert line.reward == 1.25

    def test_a_trajectory_without_steps_has_no_versions_but_may_have_a_reward(self, pool: Pool) -> None:
        pool.put(TrajectoryInfo(id="t"), Annotation.reward("trajectory", "t", 0.5))
        ((_, line),) = pool.trajectories()
        assert (line.policy_version_min, line.policy_version_max, line.reward) == (None, None, 0.5)
        assert pool.trajectory("t").reward == 0.5

    def test_the_newest_reward_of_a_name_holds(self, pool: Pool) -> None:
        step = make_step("t")
        pool.put(TrajectoryInfo(id="t"), step)
        for value in (0.0, 5.0, 2.0):
            pool.put(Annotation.reward("step", step.id, value), Annotation.reward("trajectory", "t", value, "judge"))
        assert pool.trajectory("t").reward_parts == (("judge", 2.0), ("reward", 2.0))
        assert pool.trajectory("t").step_rewards == (4.0,)

    def test_a_group_has_all_its_trajectories_in_the_order_they_were_opened(self, pool: Pool) -> None:
        info = GroupInfo(id="g", task_id="task", size=1)
        pool.put(info, *complete_trajectory("b", "g"), TrajectoryInfo(id="a", group_id="g"), TrajectoryInfo(id="z"))
        group = pool.group("g")
        assert group.info == info
        assert [member.info.id for member in group.trajectories] == ["b", "a"]
        assert group.trajectories[0] == pool.trajectory("b")

    def test_updates_come_oldest_first_and_by_run(self, pool: Pool) -> None:
        metrics = (("loss", 0.1), ("ratio", math.inf))
        made = [UpdateInfo(run=run, policy_version=version, metrics=metrics) for version, run in enumerate("abab")]
        pool.put(*made)
        assert pool.updates() == made
        assert pool.updates("b") == made[1::2]
        assert pool.updates("c") == []

    def test_a_version_that_was_made_again_counts_once_as_it_was_made_last(self, pool: Pool) -> None:
        first, lost, again = (UpdateInfo(run="a", policy_version=v, metrics=(("try", v),)) for v in (1, 2, 2))
        pool.put(first, lost, again)
        assert pool.updates() == [first, again]

    def test_forks_are_counted_by_model_and_agent_for_steps_that_calls_made(self, pool: Pool) -> None:
        pool.put(TrajectoryInfo(id="t", agent="a"))
        kinds = [
            ("", "", "chat"),
            ("template", "", "chat"),
            ("template", "", "chat"),
            ("root", "title", "chat"),
            ("", "", ""),
        ]
        for index, (fork, side, dialect) in enumerate(kinds):
            step = Step(
                trajectory_id="t",
                index=index,
                prompt_ids=[1],
                response_ids=[],
                logprobs=[],
                model="m",
                fork=fork,
                side=side,
                dialect=dialect,
            )
            pool.put(step)
        counts = [(count.model, count.agent, count.fork, count.side, count.steps) for count in pool.forks()]
        assert counts == [
            ("m", "a", "", False, 1),
            ("m", "a", "root", True, 1),
            ("m", "a", "template", False, 2),
        ]

    def test_forks_of_two_stretches_of_the_log_add_up_to_those_of_both(self, pool: Pool) -> None:
        pool.put(TrajectoryInfo(id="t", agent="a"))
        cursors = [pool.cursor()]
        for index, fork in enumerate(("root", "", "", "template")):
            made = {"trajectory_id": "t", "index": index, "prompt_ids": [1], "response_ids": [], "logprobs": []}
            pool.put(Step(**made, model="m", fork=fork, dialect="chat"))
            cursors.append(pool.cursor())
        for cut in cursors:
            parts = [*pool.forks(until=cut), *pool.forks(after=cut)]
            assert sum(part.steps for part in parts) == 4
            assert {part.fork for part in parts} == {"root", "", "template"}
        assert [count.steps for count in pool.forks(after=cursors[1], until=cursors[3])] == [2]


class LeaseLaws:
    def test_a_group_is_ready_once_enough_of_its_trajectories_are_complete(self, pool: Pool) -> None:
        pool.put(
            GroupInfo(id="g", task_id="", size=2), *complete_trajectory("a", "g"), TrajectoryInfo(id="b", group_id="g")
        )
        assert leased(pool) == []
        pool.put(Annotation.end("b", "truncated"))
        assert leased(pool) == []
        pool.put(Annotation.reward("trajectory", "b", 0.0))
        assert pool.stats().groups_ready == 1
        assert leased(pool) == ["g"]

    def test_failed_trajectories_do_not_count_rewarded_or_not(self, pool: Pool) -> None:
        pool.put(GroupInfo(id="g", task_id="", size=1), TrajectoryInfo(id="f", group_id="g"))
        pool.put(Annotation.end("f", "failed"), Annotation.reward("trajectory", "f", 1.0))
        assert leased(pool) == []

    def test_a_reward_of_any_step_makes_a_trajectory_rewarded(self, pool: Pool) -> None:
        step = make_step("t")
        pool.put(GroupInfo(id="g", task_id="", size=1), TrajectoryInfo(id="t", group_id="g"), step)
        pool.put(Annotation.reward("step", step.id, 1.0), Annotation.end("t", "terminated"))
        assert leased(pool) == ["g"]

    def test_exactly_the_first_to_complete_are_handed_over(self, pool: Pool) -> None:
        pool.put(GroupInfo(id="g", task_id="", size=2))
        pool.put(*(TrajectoryInfo(id=name, group_id="g") for name in "abcd"))
        pool.put(*(Annotation.reward("trajectory", name, 1.0) for name in "abcd"))
        for name, how in (("d", "terminated"), ("a", "failed"), ("c", "truncated"), ("b", "terminated")):
            pool.put(Annotation.end(name, how))
        (group,) = pool.lease(LeaseSpec(consumer="trainer", limit=1)).groups
        assert [member.info.id for member in group.trajectories] == ["d", "c"]
        assert group.trajectories[0] == pool.trajectory("d")

    def test_groups_come_in_the_order_in_which_they_became_ready_up_to_the_limit(self, pool: Pool) -> None:
        pool.put(*(GroupInfo(id=name, task_id="", size=1) for name in ("g0", "g1", "g2")))
        for name in ("g2", "g0", "g1"):
            pool.put(*complete_trajectory(f"of-{name}", name))
        assert [leased(pool, limit=2), leased(pool, limit=2), leased(pool, limit=2)] == [["g2", "g0"], ["g1"], []]

    def test_each_consumer_gets_every_group(self, pool: Pool) -> None:
        pool.put(*ready_group("g"))
        pool.acknowledge(pool.lease(LeaseSpec(consumer="one", limit=1)).id)
        assert leased(pool, "two") == ["g"]

    def test_a_lease_names_its_consumer_and_expiry(self, pool: Pool, clock: FakeClock) -> None:
        lease = pool.lease(LeaseSpec(consumer="trainer", limit=1, seconds=60))
        assert (lease.consumer, lease.expires_at, lease.groups) == ("trainer", clock.now + 60, ())

    def test_an_unacknowledged_group_comes_back_after_expiry(self, pool: Pool, clock: FakeClock) -> None:
        pool.put(*ready_group("g"))
        assert leased(pool, seconds=60) == ["g"]
        clock.advance(59)
        assert leased(pool) == []
        clock.advance(1)
        assert leased(pool) == ["g"]

    def test_a_clock_that_goes_back_makes_a_lease_last_longer_and_no_more(self, pool: Pool, clock: FakeClock) -> None:
        pool.put(*ready_group("g0"))
        assert leased(pool, seconds=60) == ["g0"]
        clock.advance(-3600)
        pool.put(*ready_group("g1"))
        lease = pool.lease(LeaseSpec(consumer="trainer", limit=9, seconds=60))
        assert [group.info.id for group in lease.groups] == ["g1"]
        pool.acknowledge(lease.id)
        clock.advance(3659)
        assert leased(pool) == []
        clock.advance(1)
        assert leased(pool) == ["g0"]

    def test_an_acknowledged_group_never_comes_back(self, pool: Pool, clock: FakeClock) -> None:
        pool.put(*ready_group("g"))
        lease = pool.lease(LeaseSpec(consumer="trainer", limit=1, seconds=60))
        pool.acknowledge(lease.id)
        pool.acknowledge(lease.id)
        pool.release(lease.id)
        clock.advance(1e9)
        assert leased(pool) == []

    def test_a_released_group_comes_back_at_once_and_cannot_be_acknowledged(self, pool: Pool) -> None:
        pool.put(*ready_group("g"))
        lease = pool.lease(LeaseSpec(consumer="trainer", limit=1))
        pool.release(lease.id)
        pool.release(lease.id)
        with pytest.raises(Conflict, match="released"):
            pool.acknowledge(lease.id)
        assert leased(pool) == ["g"]

    def test_a_late_acknowledgement_counts_if_nothing_was_handed_over_again(self, pool: Pool, clock: FakeClock) -> None:
        pool.put(*ready_group("g"))
        lease = pool.lease(LeaseSpec(consumer="trainer", limit=1, seconds=60))
        clock.advance(100)
        pool.acknowledge(lease.id)
        assert leased(pool) == []

    def test_a_late_acknowledgement_of_a_group_handed_over_again_is_a_conflict(
        self, pool: Pool, clock: FakeClock
    ) -> None:
        pool.put(*ready_group("g0"), *ready_group("g1"))
        late = pool.lease(LeaseSpec(consumer="trainer", limit=2, seconds=60))
        clock.advance(60)
        again = pool.lease(LeaseSpec(consumer="trainer", limit=1, seconds=60))
        with pytest.raises(Conflict, match="expired"):
            pool.acknowledge(late.id)
        pool.acknowledge(again.id)
        assert leased(pool) == ["g1"]

    def test_releasing_an_expired_lease_does_not_take_the_group_from_its_new_holder(
        self, pool: Pool, clock: FakeClock
    ) -> None:
        pool.put(*ready_group("g"))
        late = pool.lease(LeaseSpec(consumer="trainer", limit=1, seconds=60))
        clock.advance(60)
        again = pool.lease(LeaseSpec(consumer="trainer", limit=1, seconds=60))
        pool.release(late.id)
        assert leased(pool) == []
        pool.acknowledge(again.id)

    def test_stale_groups_are_passed_over(self, pool: Pool) -> None:
        pool.put(*ready_group("old", version=1), *ready_group("new", version=2))
        assert leased(pool, min_policy_version=2) == ["new"]
        assert leased(pool, min_policy_version=1) == ["old"]

    def test_a_group_is_as_stale_as_the_oldest_step_that_it_hands_over(self, pool: Pool) -> None:
        pool.put(GroupInfo(id="g", task_id="", size=2), *complete_trajectory("a", "g", version=5))
        pool.put(*complete_trajectory("b", "g", version=3), *complete_trajectory("surplus", "g", version=0))
        assert leased(pool, min_policy_version=4) == []
        assert leased(pool, min_policy_version=3) == ["g"]

    def test_a_channel_restricts_the_choice(self, pool: Pool) -> None:
        for name, channel in (("g1", "left"), ("g2", "right"), ("g3", "left")):
            records = ready_group(name)
            assert isinstance(records[0], GroupInfo)
            pool.put(replace(records[0], channel=channel), *records[1:])
        assert leased(pool, channel="left") == ["g1", "g3"]
        assert leased(pool) == ["g2"]

    def test_a_consumer_that_restarted_gets_back_what_it_held_and_not_what_it_acknowledged(self, pool: Pool) -> None:
        pool.put(*ready_group("g1"), *ready_group("g2"))
        pool.acknowledge(pool.lease(LeaseSpec(consumer="me", limit=1)).id)
        pool.lease(LeaseSpec(consumer="me", limit=1))
        other = pool.lease(LeaseSpec(consumer="other", limit=2))
        assert pool.release_all("me") == 1
        assert [g.info.id for g in pool.lease(LeaseSpec(consumer="me", limit=9)).groups] == ["g2"]
        assert not pool.lease(LeaseSpec(consumer="other", limit=9)).groups
        pool.acknowledge(other.id)

    def test_group_ids_restrict_the_choice(self, pool: Pool) -> None:
        pool.put(*ready_group("g0"), *ready_group("g1"), *ready_group("g2"))
        assert leased(pool, group_ids=["g2", "g1", "nowhere"], limit=1) == ["g1"]
        assert leased(pool, group_ids=["g2", "g1"]) == ["g2"]

    def test_an_empty_lease_can_be_acknowledged_and_released(self, pool: Pool) -> None:
        pool.acknowledge(pool.lease(LeaseSpec(consumer="trainer", limit=1)).id)
        pool.release(pool.lease(LeaseSpec(consumer="trainer", limit=1)).id)

    def test_unknown_leases_are_not_found(self, pool: Pool) -> None:
        for act in (pool.acknowledge, pool.release):
            with pytest.raises(NotFound, match="nowhere"):
                act("nowhere")

    @pytest.mark.parametrize(
        "wish",
        [
            {"limit": 0},
            {"seconds": 0},
            {"seconds": math.nan},
            {"consumer": ""},
            {"selection": {"group_ids": ["a\ud800"]}},
        ],
        ids=str,
    )
    def test_an_impossible_wish_is_an_invalid_request(self, pool: Pool, wish: dict[str, Any]) -> None:
        with pytest.raises(ValueError):
            pool.lease(LeaseSpec.model_validate({"consumer": "trainer", "limit": 1, **wish}))

    def test_concurrent_leases_never_hand_a_group_over_twice(self, pool: Pool) -> None:
        names = [f"g{number}" for number in range(30)]
        pool.put(*(record for name in names for record in ready_group(name, size=1)))

        def consume(_: int) -> list[str]:
            taken: list[str] = []
            while got := leased(pool, limit=2):
                taken += got
            return taken

        with ThreadPoolExecutor(6) as threads:
            taken = [name for part in threads.map(consume, range(6)) for name in part]
        assert sorted(taken) == sorted(names)

    def test_a_reward_that_is_corrected_after_readiness_is_the_one_handed_over(self, pool: Pool) -> None:
        pool.put(*ready_group("g", size=1), Annotation.reward("trajectory", "g-0", -3.0))
        (group,) = pool.lease(LeaseSpec(consumer="trainer", limit=1)).groups
        assert group.trajectories[0].reward == -3.0


class PoolLaws(AppendLaws, ReadLaws, LeaseLaws):
    """All of them."""
