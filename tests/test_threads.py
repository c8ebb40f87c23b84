"""Threads for functions that may never return."""

import asyncio
import contextvars
import subprocess
import sys
import threading
from concurrent.futures import wait

import pytest

from stepwell.threads import Abandonable, in_thread


def test_a_call_gets_the_thread_of_one_that_has_returned() -> None:
    threads, used = Abandonable(), set()
    for _ in range(50):
        used.add(threads.submit(threading.get_ident).result())
    assert len(used) < 25  # a thread rests only a moment after its result is known


def test_calls_at_once_have_a_thread_each_and_one_that_hangs_takes_nobodys_place() -> None:
    threads, gate, meeting = Abandonable(), threading.Event(), threading.Barrier(8)
    hanging = threads.submit(gate.wait)
    together = [threads.submit(meeting.wait, 30) for _ in range(8)]
    assert not wait(together, timeout=30).not_done
    assert sorted(future.result() for future in together) == list(range(8))
    assert not hanging.done()
    gate.set()
    assert hanging.result(30)


@pytest.mark.parametrize("error", [ValueError("no"), KeyError("k")])
async def test_what_a_function_raises_is_raised_to_who_waits(error: Exception) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        await in_thread(fail)
    assert raised.value is error
    assert await in_thread(lambda: 7) == 7


async def test_a_stop_iteration_and_an_exit_come_through() -> None:
    def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(RuntimeError, match="StopIteration"):
        await in_thread(next, iter(()))
    with pytest.raises(SystemExit, match="3"):
        await in_thread(leave)


def test_the_interpreter_does_not_wait_for_what_hangs() -> None:
    program = """
import asyncio, threading
from stepwell.threads import in_thread
async def main():
    try:
        async with asyncio.timeout(0.2):
            await in_thread(threading.Event().wait)
    except TimeoutError:
        print("went on")
asyncio.run(main())
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "went on\n"


async def test_a_context_variable_is_the_callers() -> None:
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")

    async def ask(name: str) -> str:
        who.set(name)
        return await in_thread(who.get)

    assert await asyncio.gather(*[ask(name) for name in "abcabc"]) == list("abcabc")
    assert await in_thread(who.get) == "nobody"
