"""The laws of keeping a pool well: checking it, mending it, forgetting what is not needed any more."""

import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

from stepwell.curation.selection import Selection
from stepwell.errors import InvalidRequest, NotFound, PoolError
from stepwell.pool import schema
from stepwell.pool.base import Pool
from stepwell.pool.keeping import Retention
from stepwell.pool.lease import LeaseSpec
from stepwell.pool.store import open_pool
from stepwell.types import Annotation, GroupInfo, TrajectoryInfo, UpdateInfo
from tests.pool.builders import complete_trajectory, make_step, ready_group
from tests.pool.conftest import FakeClock, connected


def ids(pool: Pool) -> list[str]:
    return [summary.info.id for _, summary in pool.trajectories()][::-1]


def filled(pool: Pool) -> None:
    pool.put(*ready_group("g", size=2), UpdateInfo(run="r", policy_version=1))
    pool.put(TrajectoryInfo(id="t"), *(make_step("t", index, prompt=range(1, 4 + index)) for index in range(5)))
    pool.put(Annotation.tag("trajectory", "t", "good"), Annotation.verdict("trajectory", "t", "accept"))


class VerifyLaws:
    def test_a_pool_that_nobody_damaged_has_no_fault_and_everything_is_read(self, pool: Pool) -> None:
        filled(pool)
        read: list[int] = []
        assert pool.verify(progress=read.append) == []
        assert sum(read) == pool.stats().cursor

    @pytest.mark.parametrize("column", ["steps", "reward", "verdict", "prompt_tokens", "status", "next_index"])
    def test_a_derived_column_that_is_wrong_is_found_and_mended(self, pool: Pool, location: str, column: str) -> None:
        filled(pool)
        wrong = "open" if column == "status" else "reject" if column == "verdict" else 77
        with connected(location) as connection:
            of = schema.trajectories.c
            connection.execute(sa.update(schema.trajectories).where(of.id == "g-0").values({column: wrong}))
        (fault,) = pool.verify()
        assert (fault.kind, fault.id, fault.repairable) == ("derived", "g-0", True)
        assert column in fault.message
        assert len(pool.verify(repair=True)) == 1
        assert pool.verify() == []

    @pytest.mark.parametrize(
        ("gone", "of"),
        [("groups", {"g-0", "g-1"}), ("trajectories", {"t-0", "t-note", "step-note"}), ("steps", {"step-note"})],
    )
    def test_a_record_that_refers_to_one_that_is_gone_is_found(
        self, pool: Pool, location: str, gone: str, of: set[str]
    ) -> None:
        pool.put(*ready_group("g", size=2), TrajectoryInfo(id="t"), make_step("t", id="t-0"))
        pool.put(Annotation(id="t-note", target="trajectory", target_id="t", kind="note", text="about it"))
        pool.put(Annotation(id="step-note", target="step", target_id="t-0", kind="note", text="about it"))
        table = schema.metadata.tables[gone]
        with connected(location) as connection:
            connection.execute(sa.delete(table).where(table.c.id.in_(["g", "t", "t-0"])))
        faults = [fault for fault in pool.verify() if "is that of no record" in fault.message]
        assert {fault.id for fault in faults} == of
        assert {fault.kind for fault in faults} == {"record"}

    def test_tags_and_readiness_and_the_counter_are_mended(self, pool: Pool, location: str) -> None:
        filled(pool)
        with connected(location) as connection:
            connection.execute(sa.delete(schema.tags))
            connection.execute(sa.update(schema.groups).values(ready_cursor=None, ready_version=None))
            connection.execute(sa.update(schema.meta).values(value=3))
        kinds = {(fault.kind, fault.id) for fault in pool.verify(repair=True)}
        assert kinds == {("tags", "t"), ("derived", "g"), ("cursor", "")}
        assert pool.verify() == []
        assert [group.info.id for group in pool.lease(LeaseSpec(consumer="c")).groups] == ["g"]
        pool.put(TrajectoryInfo(id="more"))

    def test_damaged_records_are_named_one_by_one_and_hide_no_others(self, pool: Pool, location: str) -> None:
        filled(pool)
        first, *_, last = pool.trajectory("t").steps
        with connected(location) as connection:
            of = schema.steps.c
            connection.execute(sa.update(schema.steps).where(of.id == first.id).values(tokens=b"nonsense"))
            connection.execute(sa.update(schema.steps).where(of.id == last.id).values(model="another"))
            connection.execute(
                sa.update(schema.annotations).where(schema.annotations.c.kind == "reward").values(value=9)
            )
        faults = pool.verify()
        assert first.id in {fault.id for fault in faults if not fault.repairable}
        assert len([fault for fault in faults if fault.kind == "record"]) >= 3
        with pytest.raises(PoolError, match=first.id):
            pool.step(first.id)

    @pytest.mark.parametrize(
        ("table", "column", "value"),
        [
            ("annotations", "kind", "zzz"),
            ("groups", "size", 0),
            ("trajectories", "id", ""),
            ("updates", "metrics", "?"),
        ],
    )
    def test_a_record_that_cannot_be_made_of_what_is_stored_is_one_fault_and_ends_nothing(
        self, pool: Pool, location: str, table: str, column: str, value: object
    ) -> None:
        filled(pool)
        of = schema.metadata.tables[table]
        with connected(location) as connection:
            first = sa.select(sa.func.min(of.c.cursor)).scalar_subquery()
            connection.execute(sa.update(of).where(of.c.cursor == first).values({column: value}))
            gone = schema.annotations
            tag = sa.update(gone).where(gone.c.kind == "tag").values(text="another")
            connection.execute(tag)
        faults = [fault for fault in pool.verify() if fault.kind == "record"]
        assert any("cannot be read" in fault.message for fault in faults)
        assert any("digest" in fault.message for fault in faults)  # of what comes after it

    def test_an_annotation_of_a_step_of_another_trajectory_is_found(self, pool: Pool, location: str) -> None:
        filled(pool)
        stolen = pool.trajectory("t").steps[2]
        pool.put(Annotation(id="n", target="trajectory", target_id="g-0", kind="note", text="about it"))
        with connected(location) as connection:
            step = sa.select(schema.steps.c.cursor).where(schema.steps.c.id == stolen.id).scalar_subquery()
            note = schema.annotations
            connection.execute(sa.update(note).where(note.c.id == "n").values(step_cursor=step))
        (fault,) = pool.verify()
        assert (fault.kind, fault.id) == ("record", "n")
        assert "another trajectory" in fault.message

    @pytest.mark.parametrize(("table", "column"), [("trajectories", "channel"), ("groups", "ready_version")])
    def test_columns_that_decide_what_is_handed_over_are_found_and_mended(
        self, pool: Pool, location: str, table: str, column: str
    ) -> None:
        filled(pool)
        of = schema.metadata.tables[table]
        with connected(location) as connection:
            wrong = "elsewhere" if column == "channel" else 77
            connection.execute(sa.update(of).where(of.c.id.in_(["g", "g-0"])).values({column: wrong}))
        (fault,) = pool.verify(repair=True)
        assert (fault.kind, fault.repairable) == ("derived", True)
        assert pool.verify() == []

    @pytest.mark.parametrize(
        ("damage", "says"), [("unit", "units"), ("digests", "digest"), ("manifest", "manifest"), ("digest", "digest")]
    )
    def test_a_dataset_that_is_not_what_was_frozen_is_found(
        self, pool: Pool, location: str, damage: str, says: str
    ) -> None:
        pool.put(*ready_group("a", size=2), *ready_group("b", size=2))
        pool.freeze("train", Selection())
        assert pool.verify() == []
        units, sets = schema.dataset_units, schema.datasets
        first = sa.select(sa.func.min(units.c.unit_cursor)).scalar_subquery()
        statements = {
            "unit": sa.delete(units).where(units.c.unit_cursor == first),
            "digests": sa.update(units).where(units.c.unit_cursor == first).values(digests=bytes(32)),
            "manifest": sa.update(sets).values(manifest="{"),
            "digest": sa.update(sets).values(digest="0"),
        }
        with connected(location) as connection:
            connection.execute(statements[damage])
        faults = pool.verify()
        assert {(fault.kind, fault.id, fault.repairable) for fault in faults} == {("saved", "train@1", False)}
        assert any(says in fault.message for fault in faults)

    def test_a_selection_and_a_delivery_that_lead_nowhere_are_found(self, pool: Pool, location: str) -> None:
        pool.put(*ready_group("a", size=2))
        pool.save_selection("wanted", Selection())
        pool.lease(LeaseSpec(consumer="c"))
        assert pool.verify() == []
        with connected(location) as connection:
            connection.execute(sa.update(schema.selections).values(definition="{"))
            connection.execute(sa.update(schema.deliveries).values(lease_id="no such lease"))
        assert {(fault.kind, fault.id) for fault in pool.verify()} == {("saved", "wanted"), ("saved", "c")}


class PruneLaws:
    def test_by_age_the_old_go_with_all_that_belongs_to_them(self, pool: Pool, clock: FakeClock) -> None:
        old = GroupInfo(id="old", task_id="", size=1, created_at=0.0)
        _, *rest = complete_trajectory("old-0", "old")
        pool.put(old, TrajectoryInfo(id="old-0", group_id="old", created_at=0.0), *rest)
        pool.put(Annotation.tag("trajectory", "old-0", "x"), TrajectoryInfo(id="new", created_at=clock.now))
        would = pool.prune(Retention(max_age=3600), dry_run=True)
        assert ids(pool) == ["old-0", "new"]
        assert pool.prune(Retention(max_age=3600)) == would
        assert (would.trajectories, would.steps) == (1, 1)
        assert ids(pool) == ["new"]
        with pytest.raises(NotFound):
            pool.group("old")
        assert (pool.stats().steps, pool.stats().annotations) == (0, 0)
        assert pool.verify() == []

    def test_by_size_the_oldest_go_until_the_rest_fits(self, pool: Pool) -> None:
        pool.put(*(record for number in range(6) for record in complete_trajectory(f"t{number}", None)))
        everything = pool.prune(Retention(max_bytes=0), dry_run=True)
        assert everything.trajectories == 6
        pool.prune(Retention(max_bytes=everything.bytes // 2))
        assert ids(pool) == ["t3", "t4", "t5"]

    def test_by_version_those_go_that_no_trainer_would_take(self, pool: Pool) -> None:
        for number, version in enumerate((1, 4, 5)):
            pool.put(*complete_trajectory(f"t{number}", None, version=version))
        pool.put(UpdateInfo(run="r", policy_version=6))
        pool.prune(Retention(max_lag=2))
        assert ids(pool) == ["t1", "t2"]

    def test_a_selection_alone_is_no_reason_and_with_a_limit_it_restricts(self, pool: Pool) -> None:
        pool.put(*complete_trajectory("bad", None, reward=0.0), *complete_trajectory("good", None, reward=1.0))
        bad = Selection(max_reward=0.5)
        assert pool.prune(Retention(selection=bad)).trajectories == 0
        assert pool.prune(Retention(selection=bad, all_selected=True)).trajectories == 1
        assert ids(pool) == ["good"]

    def test_a_group_goes_as_a_whole_or_not_at_all(self, pool: Pool) -> None:
        pool.put(GroupInfo(id="g", task_id="", size=2))
        pool.put(*complete_trajectory("a", "g", reward=0.0), *complete_trajectory("b", "g", reward=1.0))
        assert pool.prune(Retention(selection=Selection(max_reward=0.5), all_selected=True)).trajectories == 0
        assert pool.prune(Retention(all_selected=True)).trajectories == 2

    def test_what_is_held_or_still_awaited_stays(self, pool: Pool) -> None:
        pool.put(*ready_group("held", size=1), *ready_group("free", size=1))
        pool.put(GroupInfo(id="awaited", task_id="", size=2), *complete_trajectory("half", "awaited"))
        pool.lease(LeaseSpec(consumer="c"))
        pool.prune(Retention(all_selected=True))
        assert ids(pool) == ["held-0", "half"]

    def test_what_one_writer_adds_while_another_forgets_is_refused_or_refers_to_what_is_there(
        self, pool: Pool, location: str
    ) -> None:
        other, done = open_pool(location), threading.Event()

        def forget() -> None:
            while not done.is_set():
                other.prune(Retention(all_selected=True))

        forgetting = threading.Thread(target=forget)
        forgetting.start()
        receipts = []
        for name in (f"t{number}" for number in range(40)):
            receipts += pool.append([TrajectoryInfo(id=name), make_step(name, id=f"{name}-0")]).result()
            about = [Annotation.reward("trajectory", name, 1.0), Annotation.tag("step", f"{name}-0", "good")]
            receipts += pool.append([make_step(name, 1, prompt=[1, 2, 7, 8, 9]), *about]).result()
        done.set()
        forgetting.join()
        other.close()
        assert {type(receipt.error) for receipt in receipts} <= {type(None), NotFound}
        assert pool.verify() == []

    def test_what_was_forgotten_may_come_again(self, pool: Pool) -> None:
        records = ready_group("g", size=1)
        pool.put(*records)
        pool.prune(Retention(all_selected=True))
        pool.put(*records)
        assert [group.info.id for group in pool.lease(LeaseSpec(consumer="c")).groups] == ["g"]


class BackupLaws:
    def test_a_backup_is_a_pool_of_that_moment_or_the_error_names_the_tool(
        self, pool: Pool, location: str, tmp_path: Path
    ) -> None:
        filled(pool)
        copy = tmp_path / "copies" / "copy.sqlite"
        if location.startswith("postgresql"):
            with pytest.raises(InvalidRequest, match="pg_dump"):
                pool.backup(copy)
            return
        pool.backup(copy)
        before = pool.stats()
        pool.put(TrajectoryInfo(id="later"))
        other = open_pool(str(copy))
        assert other.stats() == before
        assert other.verify() == []
        other.close()
        with pytest.raises(PoolError, match="exists"):
            pool.backup(copy)


class CareLaws(VerifyLaws, PruneLaws, BackupLaws):
    pass
