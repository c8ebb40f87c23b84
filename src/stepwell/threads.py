"""Threads for functions that may never return: nobody waits for them, neither an event loop that closes nor the
interpreter when it ends, so that an interrupt always comes through."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

_T = TypeVar("_T")


_IDLE: Final = 5.0
"""Seconds after which a thread that has nothing to do ends."""

_Work = tuple[Future[Any], Callable[..., Any], Any, Any]


class Abandonable(ThreadPoolExecutor):
    """A thread for each call, which is used again once the call has returned; starting one takes longer than most
    calls do. As an event loop's default executor it is what `asyncio.to_thread` uses.

    It is a `ThreadPoolExecutor` only because event loops want one.
    """

    def __init__(self) -> None:
        """Without threads."""
        super().__init__()
        self._resting: list[SimpleQueue[_Work]] = []
        """Of the threads that have nothing to do, each one's way in; the last one has rested least."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See `Executor`."""
        future: Future[Any] = Future()
        try:
            way_in = self._resting.pop()
        except IndexError:
            way_in = SimpleQueue()
            threading.Thread(target=self._work, args=(way_in,), daemon=True).start()
        way_in.put((future, function, args, kwargs))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for nobody."""

    def _work(self, way_in: "SimpleQueue[_Work]") -> None:
        while True:
            try:
                work = way_in.get(timeout=_IDLE)
            except Empty:
                try:
                    self._resting.remove(way_in)
                except ValueError:  # somebody has just taken it, and is about to put something in
                    continue
                return
            _run(*work)
            del work  # what it holds is not to be kept for as long as nothing comes
            self._resting.append(way_in)


_THREADS: Final = Abandonable()


async def in_thread(function: Callable[..., _T], /, *args: Any, **kwargs: Any) -> _T:
    """As `asyncio.to_thread`, in a thread of its own: one that hangs takes nobody's place, and nobody waits for it.

    Whoever awaits it must catch a SystemExit of the function's, which would end the event loop.
    """
    call = partial(contextvars.copy_context().run, function, *args, **kwargs)
    try:
        return await asyncio.get_running_loop().run_in_executor(_THREADS, call)
    except RuntimeError as error:
        if isinstance(error.__cause__, SystemExit):
            raise error.__cause__ from None
        raise


def _run(future: Future[Any], function: Callable[..., Any], args: Any, kwargs: Any) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function(*args, **kwargs)
    except BaseException as error:
        # No event loop takes a StopIteration. The others would end it, but nobody but the function itself raises here.
        plain = isinstance(error, Exception) and not isinstance(error, StopIteration)
        future.set_exception(error if plain else _as_error(error))
    else:
        future.set_result(result)


def _as_error(error: BaseException) -> RuntimeError:
    wrapped = RuntimeError(f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
