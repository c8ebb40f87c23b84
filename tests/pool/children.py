"""Programs that the store's tests run in other processes: `python -m tests.pool.children NAME POOL …`."""

import itertools
import resource
import sys
from pathlib import Path

from stepwell.errors import PoolError
from stepwell.pool.store import SQLitePool
from stepwell.types import TrajectoryInfo
from tests.pool.builders import make_step


def append_for_ever(path: str, log: str) -> None:
    """Append steps in batches and note their ids in `log` once they are acknowledged, until killed."""
    pool = SQLitePool.open(path)
    trajectory = TrajectoryInfo()
    pool.put(trajectory)
    with Path(log).open("a") as acknowledged:
        for start in itertools.count(step=5):
            steps = [make_step(trajectory.id, index, prompt=range(1, 4 + index)) for index in range(start, start + 5)]
            pool.put(*steps)
            acknowledged.writelines(f"{step.id}\n" for step in steps)
            acknowledged.flush()


def append_some(path: str, trajectory_id: str, count: str) -> None:
    """Append `count` steps one by one to a new trajectory, and every one of them also a second time."""
    pool = SQLitePool.open(path)
    pool.put(TrajectoryInfo(id=trajectory_id))
    for index in range(int(count)):
        step = make_step(trajectory_id, index, prompt=range(1, 4 + index))
        pool.put(step)
        pool.put(step)
    pool.close()


def lease_all(path: str) -> None:
    """Lease group by group and print the id of each."""
    pool = SQLitePool.open(path)
    while groups := pool.lease("trainer", limit=1).groups:
        print(groups[0].info.id, flush=True)
    pool.close()


def fill_the_disk(path: str) -> None:
    """Append with no room to grow, then with room again; print what became of each step."""
    pool = SQLitePool.open(path)
    pool.put(TrajectoryInfo(id="t"), make_step("t", 0))
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (Path(path).stat().st_size + 100_000, hard))
    big = make_step("t", 1, request="".join(map(chr, range(0x4E00, 0x4E00 + 20_000))) * 20)
    small = make_step("t", 2)
    try:
        pool.put(
            *(
                make_step("t", index, prompt=[i * i % 99991 for i in range(index, 5000 + index)])
                for index in range(9, 99)
            )
        )
        print("stored")
    except PoolError as error:
        print(f"PoolError: {error}")
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    pool.put(big, small)
    print(*(step.index for step in pool.trajectory("t").steps))
    pool.close()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
