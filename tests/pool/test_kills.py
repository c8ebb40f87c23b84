"""Processes that are killed at random moments of their work: 5 times each, or as often as STEPWELL_KILLS says."""

import os
import random
import time
from collections import Counter
from pathlib import Path

from stepwell.pool.base import Pool
from stepwell.pool.lease import LeaseSpec
from stepwell.pool.store import open_pool
from tests.pool.builders import make_step
from tests.pool.children import spawn

KILLS = int(os.environ.get("STEPWELL_KILLS", "5"))


def test_a_killed_process_loses_nothing_acknowledged_and_duplicates_nothing(location: str, tmp_path: Path) -> None:
    log = tmp_path / "acknowledged"
    log.touch()
    for kill in range(1, KILLS + 1):
        child = spawn("append_for_ever", location, log)
        before = len(log.read_text().splitlines())
        while len(log.read_text().splitlines()) < before + 20 * (kill % 10 + 1):
            assert child.poll() is None
            time.sleep(0.005)
        child.kill()
        child.communicate()
    pool = open_pool(location)
    stored = [step for trajectory in pool.scan() for step in trajectory.steps]
    ids = [step.id for step in stored]
    assert set(log.read_text().split("\n")[:-1]) <= set(ids)
    assert len(ids) == len(set(ids)) == pool.stats().steps
    for step in stored:
        made = make_step(
            step.trajectory_id, step.index, range(1, 4 + step.index), id=step.id, created_at=step.created_at
        )
        assert step == made
    assert pool.verify() == []
    pool.close()


def consume_the_rest(pool: Pool) -> list[str]:
    rest: list[str] = []
    while (lease := pool.lease(LeaseSpec(consumer="trainer", limit=50))).groups:
        rest += [group.info.id for group in lease.groups]
        pool.acknowledge(lease.id)
    return rest


def test_killed_consumers_lose_no_group_and_get_none_twice(location: str, tmp_path: Path) -> None:
    log, randomness = tmp_path / "log", random.Random(5)
    for _ in range(KILLS):
        child = spawn("work_for_ever", location, log)
        assert child.stdout.readline() == "ready\n"
        time.sleep(randomness.uniform(0.05, 0.5))
        child.kill()
        child.communicate()
    lines = [line.split() for line in log.read_text().split("\n")[:-1]]
    made = {name for what, name in lines if what == "made"}
    consumed = [name for what, name in lines if what == "consumed"]
    pool = open_pool(location, clock=lambda: time.time() + 10_000)  # whatever was held has expired
    ready = {line.info.id for _, line in pool.groups(limit=100_000) if line.state == "ready"}
    rest = consume_the_rest(pool)
    assert made <= ready
    assert Counter(consumed + rest).most_common(1)[0][1] == 1
    # An acknowledgement may be in the pool though the process died before it noted that: at most that of one lease.
    unnoted = ready - set(consumed) - set(rest)
    assert len(unnoted) <= 2 * KILLS
    (own,) = pool.consumption()
    assert (own.acknowledged, own.held) == (len(ready), 0)
    assert pool.verify() == []
    pool.close()
