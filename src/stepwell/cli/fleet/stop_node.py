"""Ends one Ray node of this machine: `python -m stepwell.cli.fleet.stop_node NAME=ADDRESS/NUMBER`.

`ray stop` would end all of them, whoever started them. A node's processes all inherit the variable that it was started
with, whose value is the address of the cluster and the number of the node.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import ray  # noqa: F401 - psutil comes with it

# isort: split
import psutil

_FAREWELL: Final = 10.0
"""Seconds that its processes have to end by themselves."""


def stop(mark: str) -> int:
    """End the node with this mark, `NAME=ADDRESS/NUMBER`; gives the number of processes that it had."""
    found = len(_marked(mark))
    # A raylet takes its workers and agents along, and all of them complain where the store of the cluster ends first.
    _end(mark, lambda process: process.name() == "raylet")
    _end(mark, lambda process: process.name() != "gcs_server")
    _end(mark, lambda _: True)
    _forget(mark.partition("=")[2].rpartition("/")[0])
    return found


def _end(mark: str, chosen: Callable[[Any], bool]) -> None:
    deadline = time.monotonic() + _FAREWELL
    told = set()
    while left := [process for process in _marked(mark) if _says(process, chosen)]:
        late = time.monotonic() > deadline
        for process in left:
            with contextlib.suppress(psutil.Error):
                if late:
                    process.kill()
                elif process.pid not in told:
                    process.terminate()
            told.add(process.pid)
        time.sleep(0.1)


def _marked(mark: str) -> list[Any]:
    name, _, value = mark.partition("=")
    return [process for process in psutil.process_iter() if _says(process, lambda p: p.environ().get(name) == value)]


def _says(process: Any, question: Callable[[Any], bool]) -> bool:
    try:
        return question(process)
    except (psutil.Error, OSError):  # it has ended, or is somebody else's
        return False


def _forget(address: str) -> None:
    """Ray keeps in a file which cluster runs here; the next run must not look for one that has gone."""
    current = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")  # where Ray has it
    with contextlib.suppress(OSError):
        if current.read_text(encoding="utf-8").strip() == address:
            current.unlink()


if __name__ == "__main__":
    print(stop(sys.argv[1]), "processes")
