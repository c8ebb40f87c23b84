"""Answers compared as mathematics, in processes of their own that can be killed: what an agent writes, a tower of
powers say, may keep a computer algebra system busy for ever, and no thread can be stopped.

`python -m stepwell.scoring.checker` is such a process: a line of JSON `[answer, [reference, …]]` in, a line out.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Final

from stepwell.errors import ConfigError, EnvironmentFailed

_STARTING: Final = 120.0
"""Seconds in which a process must have loaded the library."""


class Checkers:
    """As many processes as there are processors, started when they are needed."""

    def __init__(self, seconds: float) -> None:
        """Give up a comparison after `seconds`."""
        self._seconds = seconds
        self._free = asyncio.Semaphore(os.cpu_count() or 1)
        self._idle: list[asyncio.subprocess.Process] = []

    async def equal(self, answer: str, references: Sequence[str]) -> bool:
        """Whether `answer` equals one of `references`.

        Raises:
            EnvironmentFailed: it took too long, or the process died of it.
            ConfigError: a reference is no mathematics.
        """
        async with self._free:
            process = self._idle.pop() if self._idle else await _started()
            try:
                said = await self._asked(process, json.dumps([answer, list(references)]))
            except BaseException:
                await _killed(process)
                raise
            self._idle.append(process)
        if isinstance(said, str):
            raise ConfigError(said)
        return bool(said)

    async def _asked(self, process: asyncio.subprocess.Process, line: str) -> object:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(self._seconds):
                process.stdin.write(line.encode() + b"\n")
                await process.stdin.drain()
                answer = await process.stdout.readline()
        except TimeoutError as error:
            raise EnvironmentFailed(f"the comparison took longer than {self._seconds:g} s") from error
        except ConnectionError:
            answer = b""
        if not answer:
            raise EnvironmentFailed("the process that compares died of this answer")
        said: object = json.loads(answer)
        return said

    async def aclose(self) -> None:
        """End the processes."""
        while self._idle:
            await _killed(self._idle.pop())


async def _started() -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "stepwell.scoring.checker"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # an interrupt is for the program that started it, which ends it in good order
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_STARTING):
            ready = await process.stdout.readline()
    except BaseException:
        await _killed(process)
        raise
    if not ready:
        raise EnvironmentFailed("the process that compares does not start; see what it printed")
    return process


async def _killed(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()


def _equal(answer: str, references: Sequence[str]) -> bool | str:
    """The verdict, or what is wrong with the references."""
    said = math_verify.parse(answer)
    for reference in references:
        # Without delimiters the library reads only the last number of a formula.
        bare = not any(mark in reference for mark in ("$", "\\boxed", "\\(", "\\["))
        gold = math_verify.parse(f"${reference}$" if bare else reference)
        if not gold:
            return f"the reference {reference!r} cannot be read as mathematics"
        if math_verify.verify(gold, said):
            return True
    return False


def _serve() -> None:
    """Answer line by line, until there are no more."""
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(_equal(*json.loads(line))), flush=True)


if __name__ == "__main__":
    import math_verify

    _serve()
