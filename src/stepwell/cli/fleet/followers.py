"""Processes at the other places of several ranks; they end with the one that started them, however that ends."""

import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Final

from stepwell.errors import RankDied, StepwellError
from stepwell.policy.ranks import Place

_FAREWELL: Final = 30.0
"""Seconds that they have to go once they are let go."""
_NOTICE: Final = 2.0
"""Seconds after an error within which a death is taken for its cause."""
_SPAWN: Final = multiprocessing.get_context("spawn")  # a forked child would begin with locks that our threads hold


@contextmanager
def followed(count: int, follow: Callable[[Place], None]) -> Iterator[Place]:
    """The first of `count` places, with a process of this machine at each other one that runs `follow`.

    Where the block raises, they are ended at once: they may wait for something that will not be said any more.

    Raises:
        RankDied: one of them did, before they met or since.
    """
    with tempfile.TemporaryDirectory(prefix="stepwell-ranks-") as meeting:
        places = [Place(rank=rank, count=count, address=f"file://{meeting}/place") for rank in range(count)]
        processes: list[SpawnProcess] = []
        try:
            started = [_started(place, follow, processes) for place in places[1:]]
            for process, ready in zip(processes, started, strict=True):
                if ready not in wait([ready, process.sentinel]) or not ready.poll():
                    raise RuntimeError(f"{process.name} did not begin")
            yield places[0]
        except Exception as error:
            dead = [] if isinstance(error, StepwellError) else _dead(processes)
            if dead:
                raise RankDied(f"{' and '.join(dead)}: see above; go on with `stepwell train --resume`") from error
            raise
        else:
            for process in processes:
                process.join(_FAREWELL)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _started(place: Place, follow: Callable[[Place], None], processes: list[SpawnProcess]) -> Connection:
    receiver, sender = _SPAWN.Pipe(duplex=False)
    name = f"rank {place.rank}"
    process = _SPAWN.Process(target=_process, args=(place, follow, sender), name=name, daemon=True)
    process.start()
    processes.append(process)
    sender.close()
    return receiver


def _dead(processes: list[SpawnProcess]) -> list[str]:
    wait([process.sentinel for process in processes], _NOTICE)
    return [f"{p.name} of the learner died (status {p.exitcode})" for p in processes if p.exitcode]


def _process(place: Place, follow: Callable[[Place], None], ready: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the first rank too, which ends us in its time
    threading.Thread(target=_end_with_parent, daemon=True).start()
    ready.send_bytes(b"")
    follow(place)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
