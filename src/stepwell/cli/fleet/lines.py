"""A process of this machine that plays: `stepwell worker`, over lines of JSON. It ends with its standard input."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final, Self

import msgspec

from stepwell.cli.fleet.jobs import TOLD, Job, Told

_LINE: Final = 2**24
"""Bytes of the longest line."""


class Lines:
    """See `stepwell.cli.fleet.life.Life`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        """With pipes to and from `process`."""
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._jobs, self._told = process.stdin, process.stdout

    @classmethod
    async def begin(cls, command: Sequence[str]) -> Self:
        """Start it."""
        pipe = asyncio.subprocess.PIPE
        return cls(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=_LINE))

    @property
    def pid(self) -> int:
        """See `Life`."""
        return self._process.pid if self._process.returncode is None else 0

    def send(self, job: Job) -> None:
        """See `Life`."""
        if self._process.returncode is None:
            self._jobs.write(msgspec.json.encode(job) + b"\n")

    async def told(self) -> AsyncIterator[Told]:
        """See `Life`."""
        async for line in self._told:
            yield TOLD.decode(line)

    async def cause(self) -> str:
        """See `Life`."""
        return f"status {await self._process.wait()}"

    async def end(self) -> None:
        """See `Life`."""
        if self._process.returncode is not None:
            return
        self._jobs.close()
        try:
            await asyncio.wait_for(self._process.wait(), 10)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
