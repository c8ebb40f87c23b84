"""The Ray actor that plays; a plain class that knows nothing of Ray, and needs no torch, as its module is imported on
every node."""

import asyncio
import os
from collections.abc import AsyncIterator

import msgspec

from stepwell.cli.fleet.jobs import JOBS, Told
from stepwell.cli.fleet.post import Post, Posting, taken


class PlayerActor:
    """Somebody at a post, whose jobs are calls."""

    def __init__(self, posting: Posting) -> None:
        """To play at `posting`, once `tell` is called."""
        self._posting = posting
        self._said: asyncio.Queue[bytes] = asyncio.Queue()
        self._post: asyncio.Future[Post] | None = None

    async def pid(self) -> int:
        """Of the actor's process."""
        return os.getpid()

    async def tell(self) -> AsyncIterator[bytes]:
        """Everything that is told of jobs, as JSON, until `leave`. Called once."""
        loop = asyncio.get_running_loop()

        def say(told: Told) -> None:
            loop.call_soon_threadsafe(self._said.put_nowait, msgspec.json.encode(told))

        async with taken(self._posting, say) as post:
            self._opened().set_result(post)
            while line := await self._said.get():
                yield line

    async def take(self, job: bytes) -> None:
        """Begin a job."""
        post = await self._opened()
        post.take(JOBS.decode(job))

    async def leave(self) -> None:
        """Give up what plays, and have `tell` end."""
        self._said.put_nowait(b"")

    def _opened(self) -> "asyncio.Future[Post]":
        if self._post is None:
            self._post = asyncio.get_running_loop().create_future()
        return self._post
