"""Several processes as the ranks of one learner, over gloo, as tests start them.

They are forked from a server that has imported everything once, so each costs a fraction of a second.
"""

import multiprocessing
import pickle
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import torch

from stepwell.policy.ranks import Place, joined

T = TypeVar("T")
SECONDS = 120.0
"""After which ranks that wait for each other are a failure."""
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.trainer.ranked_work"])


@dataclass(frozen=True)
class Failed:
    """Why there is no result; empty if the process just died."""

    why: str


def on_ranks(count: int, work: Callable[..., T], *arguments: Any) -> list[T]:
    """What `work(ranks, *arguments)` gives on each of `count` ranks that have met; it stands in a module."""
    results = on_places(count, _met, work, *arguments)
    failed = [result.why for result in results if isinstance(result, Failed)]
    if failed:
        raise RuntimeError("\n".join(failed))
    return results


def on_places(count: int, work: Callable[..., T], *arguments: Any) -> list[T | Failed]:
    """What `work(place, *arguments)` gives, or `Failed`, in each of `count` processes that may meet."""
    with tempfile.TemporaryDirectory() as folder:
        places = [Place(rank=rank, count=count, address=f"file://{folder}/meet", seconds=60) for rank in range(count)]
        started = [_started(place, work, arguments) for place in places]
        try:
            return [_received(receiver) for _, receiver in started]
        finally:
            for process, _ in started:
                process.kill()
                process.join()


def _started(place: Place, work: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, Connection]:
    receiver, sender = _context.Pipe(duplex=False)
    process = _context.Process(target=_process, args=(place, sender, work, arguments), daemon=True)
    process.start()
    sender.close()  # so that its other end, once the process is dead, is the last
    return process, receiver


def _received(receiver: Connection) -> Any:
    if not receiver.poll(SECONDS):
        raise TimeoutError("the ranks wait for each other for ever")
    try:
        return pickle.loads(receiver.recv_bytes())
    except EOFError:
        return Failed("")


def _process(place: Place, sender: Connection, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    try:
        result = work(place, *arguments)
    except Exception:
        result = Failed(f"rank {place.rank}: {traceback.format_exc()}")
    sender.send_bytes(pickle.dumps(result))


def _met(place: Place, work: Callable[..., T], *arguments: Any) -> T:
    with joined(place) as ranks:
        return work(ranks, *arguments)
