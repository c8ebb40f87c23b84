"""Programs that the stores' tests run in other processes: `python -m tests.pool.children NAME POOL …`."""

import itertools
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from stepwell.errors import PoolError
from stepwell.pool.lease import LeaseSpec
from stepwell.pool.store import open_pool
from stepwell.types import TrajectoryInfo
from tests.pool.builders import make_step, ready_group


def spawn(name: str, *arguments: object) -> "subprocess.Popen[str]":
    """Run the program `name` below in another process."""
    command = [sys.executable, "-m", "tests.pool.children", name, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])


def lines_of(child: "subprocess.Popen[str]") -> list[str]:
    """What it printed, once it has ended well."""
    lines = child.communicate(timeout=120)[0].splitlines()
    assert child.returncode == 0
    return lines


def append_for_ever(location: str, log: str) -> None:
    """Append steps in batches and note their ids in `log` once they are acknowledged, until killed."""
    pool = open_pool(location)
    trajectory = TrajectoryInfo()
    pool.put(trajectory)
    with Path(log).open("a") as acknowledged:
        for start in itertools.count(step=5):
            steps = [make_step(trajectory.id, index, prompt=range(1, 4 + index)) for index in range(start, start + 5)]
            pool.put(*steps)
            acknowledged.writelines(f"{step.id}\n" for step in steps)
            acknowledged.flush()


def work_for_ever(location: str, log: str) -> None:
    """Make ready groups, lease and acknowledge or extend; note each thing in `log` once it is done, until killed."""
    pool = open_pool(location)
    pool.release_all("trainer")  # as a consumer does that was restarted
    with Path(log).open("a", buffering=1) as done:
        print("ready", flush=True)
        for number in itertools.count():
            name = f"{os.getpid()}-{number}"
            pool.put(*ready_group(name, size=2))
            done.write(f"made {name}\n")
            lease = pool.lease(LeaseSpec(consumer="trainer", limit=2))
            if number % 3 == 1:
                pool.extend(lease.id, 600)
            elif number % 3 == 2:
                pool.acknowledge(lease.id)
                done.writelines(f"consumed {group.info.id}\n" for group in lease.groups)


def append_some(location: str, trajectory_id: str, count: str) -> None:
    """Append `count` steps one by one to a new trajectory, and every one of them also a second time."""
    pool = open_pool(location)
    pool.put(TrajectoryInfo(id=trajectory_id))
    for index in range(int(count)):
        step = make_step(trajectory_id, index, prompt=range(1, 4 + index))
        pool.put(step)
        pool.put(step)
    pool.close()


def lease_all(location: str) -> None:
    """Lease group by group and print the id of each."""
    pool = open_pool(location)
    while groups := pool.lease(LeaseSpec(consumer="trainer", limit=1)).groups:
        print(groups[0].info.id, flush=True)
    pool.close()


def hold_a_lease(location: str, now: str, seconds: str) -> None:
    """Lease one group, print its id, and do nothing more."""
    pool = open_pool(location, clock=lambda: float(now))
    print(pool.lease(LeaseSpec(consumer="trainer", limit=1, seconds=float(seconds))).groups[0].info.id, flush=True)
    time.sleep(600)


def open_what_may_not_be_used() -> None:
    """Open a pool that may only be read, for writing and for reading, then one in a closed folder; print why not."""
    with TemporaryDirectory() as name:
        folder, path = Path(name), Path(name) / "pool.sqlite"
        open_pool(path).close()
        path.chmod(0o444)
        user = os.geteuid()
        for mode, read_only in ((0o555, False), (0o555, True), (0o000, True)):
            folder.chmod(mode)
            if user == 0:
                os.seteuid(65534)  # root may do everything, whatever the mode
            try:
                open_pool(path, read_only=read_only)
            except PoolError as error:
                print(error)
            os.seteuid(user)
        folder.chmod(0o755)


def fill_the_disk(path: str) -> None:
    """Append with no room to grow, then with room again; print what became of each step."""
    pool = open_pool(path)
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
