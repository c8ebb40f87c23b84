"""Threads for functions that may never return: nobody waits for them, neither an event loop that closes nor the
interpreter when it ends, so that an interrupt always comes through."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class Abandonable(ThreadPoolExecutor):
    """A thread for each call. As an event loop's default executor it is what `asyncio.to_thread` uses.

    It is a `ThreadPoolExecutor` only because event loops want one.
    """

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See `Executor`."""
        future: Future[Any] = Future()
        threading.Thread(target=_run, args=(future, function, args, kwargs), daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for nobody."""


def _run(future: Future[Any], function: Callable[..., Any], args: Any, kwargs: Any) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function(*args, **kwargs)
    except BaseException as error:
        # No event loop takes a StopIteration. The others would end it, but nobody but the function itself raises here.
        plain = isinstance(error, Exception) and not isinstance(error, StopIteration)
        future.set_exception(error if plain else RuntimeError(f"{type(error).__name__}: {error}"))
    else:
        future.set_result(result)
