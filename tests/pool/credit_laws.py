"""The laws of what is kept of updates and seen of leases: it comes back as it was, and goes when it is old."""

import pytest
import sqlalchemy as sa

from stepwell.curation.selection import Selection
from stepwell.errors import NotFound, PoolError
from stepwell.pool import schema
from stepwell.pool.base import Pool
from stepwell.pool.credit import StepCredit
from stepwell.pool.keeping import Retention
from stepwell.pool.lease import LeaseSpec
from stepwell.types import UpdateInfo
from tests.pool.builders import ready_group
from tests.pool.conftest import FakeClock, connected


def some(count: int = 3, **fields) -> list[StepCredit]:
    return [
        StepCredit(
            step_id=f"s{number}",
            trajectory_id=f"t{number}Ω",
            group_id="g",
            index=number,
            tokens=5,
            **{"advantage": number / 3, "weight": 1 / count, **fields},
        )
        for number in range(count)
    ]


class CreditLaws:
    def test_what_was_recorded_of_an_update_comes_back_exactly(self, pool: Pool) -> None:
        lines = [*some(), *some(1, left_out="side call")]
        pool.record_credit("run", 1, lines)
        pool.record_credit("run", 2, some(1))
        pool.record_credit("other", 1, [])
        assert pool.credit("run", 1) == lines
        assert pool.credit("run", 2) == some(1)
        assert pool.credit("other", 1) == []

    def test_of_an_update_that_was_made_again_the_newest_counts(self, pool: Pool) -> None:
        pool.record_credit("run", 1, some(3))
        pool.record_credit("run", 1, some(2))
        assert pool.credit("run", 1) == some(2)

    @pytest.mark.parametrize("run", ["other", "a\0", "\ud800"])
    def test_what_nobody_recorded_is_not_found(self, pool: Pool, run: str) -> None:
        pool.record_credit("run", 1, some())
        with pytest.raises(NotFound):
            pool.credit(run, 1)
        with pytest.raises(NotFound):
            pool.credit("run", 2)

    def test_it_is_no_record_of_the_log_and_outlives_what_it_is_about(self, pool: Pool) -> None:
        pool.put(*ready_group("g"))
        before = pool.stats()
        pool.record_credit("run", 1, some())
        assert pool.stats() == before
        pool.prune(Retention(all_selected=True))
        assert pool.credit("run", 1) == some()

    def test_it_is_forgotten_by_age_and_by_version_but_not_by_a_selection_or_a_dry_run(
        self, pool: Pool, clock: FakeClock
    ) -> None:
        pool.put(UpdateInfo(run="run", policy_version=9))
        pool.record_credit("run", 1, some())
        clock.advance(100)
        pool.record_credit("run", 8, some())
        pool.record_credit("run", 9, some())
        pool.prune(Retention(max_age=50), dry_run=True)
        pool.prune(Retention(max_age=50, selection=Selection()))
        assert pool.credit("run", 1) == some()
        pool.prune(Retention(max_age=50))
        with pytest.raises(NotFound):
            pool.credit("run", 1)
        pool.prune(Retention(max_lag=0))
        with pytest.raises(NotFound):
            pool.credit("run", 8)
        assert pool.credit("run", 9) == some()

    @pytest.mark.parametrize("blob", [b"", b"nonsense", "cut", "flipped"])
    def test_damage_is_found_and_named(self, pool: Pool, location: str, blob: bytes | str) -> None:
        pool.record_credit("run", 1, some())
        assert pool.verify() == []
        with connected(location) as connection:
            stored = connection.scalar(sa.select(schema.credits.c.steps))
            wrong = {"cut": stored[:-5], "flipped": stored[:-1] + bytes([stored[-1] ^ 1])}.get(str(blob), blob)
            connection.execute(sa.update(schema.credits).values(steps=wrong))
        (fault,) = pool.verify()
        assert (fault.kind, fault.id, fault.repairable) == ("saved", "run", False)
        with pytest.raises(PoolError, match="version 1 of 'run' is damaged"):
            pool.credit("run", 1)


class HeldLaws:
    def test_leases_are_seen_until_they_are_acknowledged_or_released(self, pool: Pool, clock: FakeClock) -> None:
        pool.put(*ready_group("a"), *ready_group("b"), *ready_group("c"))
        long = pool.lease(LeaseSpec(consumer="one", limit=2, seconds=100))
        short = pool.lease(LeaseSpec(consumer="two", epoch=3, seconds=10))
        seen = [(lease.id, lease.consumer, lease.epoch, lease.units, lease.steps) for lease in pool.held()]
        assert seen == [(short.id, "two", 3, 1, 2), (long.id, "one", 0, 2, 4)]
        assert [lease.tokens for lease in pool.held()] == [8, 16]
        assert [lease.expires_at for lease in pool.held()] == [clock.now + 10, clock.now + 100]
        clock.advance(50)
        assert len(pool.held()) == 2  # expired, and not yet handed over again
        pool.acknowledge(long.id)
        pool.release(short.id)
        assert pool.held() == []
        pool.lease(LeaseSpec(consumer="nobody", limit=1, selection=Selection(channel="nowhere")))
        assert pool.held() == []
