"""Computing in processes that can be killed: what an agent writes, or a pattern that somebody gives, may keep a library
busy for ever; no thread can be stopped, and one that never lets go of the interpreter stops everything else.

A module of such a process calls `serve` if it is run. A line of JSON goes in, a line of JSON comes out.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Final

from stepwell.errors import EnvironmentFailed

_STARTING: Final = 120.0
"""Seconds in which a process must have loaded what it needs."""
_GRACE: Final = 5.0
"""Seconds after which a process whose time is over ends itself: whoever should have killed it may be gone."""


class Processes:
    """As many processes of one kind as there are processors, started when they are needed."""

    def __init__(self, module: str, work: str, seconds: float) -> None:
        """Each runs `module`, which does a `work`; one that does not answer within `seconds` is killed."""
        self._module = module
        self._work = work
        self._seconds = seconds
        self._free = asyncio.Semaphore(os.cpu_count() or 1)
        self._idle: list[asyncio.subprocess.Process] = []

    async def ask(self, *question: object) -> object:
        """What the function of the module answers.

        Raises:
            EnvironmentFailed: it took too long, or the process died of it.
        """
        async with self._free:
            process = self._idle.pop() if self._idle else await self._started()
            try:
                said = await self._asked(process, json.dumps(question))
            except BaseException:
                await _killed(process)
                raise
            self._idle.append(process)
        return said

    async def _asked(self, process: asyncio.subprocess.Process, line: str) -> object:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(self._seconds):
                process.stdin.write(line.encode() + b"\n")
                await process.stdin.drain()
                answer = await process.stdout.readline()
        except TimeoutError as error:
            raise EnvironmentFailed(f"the {self._work} took longer than {self._seconds:g} s") from error
        except ConnectionError:
            answer = b""
        if not answer:
            raise EnvironmentFailed(f"the process died of this {self._work}")
        said: object = json.loads(answer)
        return said

    async def _started(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", self._module, str(self._seconds)),
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
            raise EnvironmentFailed(f"the process for the {self._work} does not start; see what it printed")
        return process

    async def aclose(self) -> None:
        """End the processes."""
        while self._idle:
            await _killed(self._idle.pop())


async def _killed(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()


def serve(answer: Callable[..., object]) -> None:
    """Answer questions until there are no more. Ends the process if one takes too long."""
    seconds = float(sys.argv[1]) + _GRACE
    print("ready", flush=True)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_REAL, seconds)  # nobody handles the signal, so it ends even what never looks up
        said = answer(*json.loads(line))
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(said), flush=True)
