"""`stepwell worker`: plays trajectories for a run that trains elsewhere, job by job."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
import typer

from stepwell.cli.fleet.jobs import JOBS, Told
from stepwell.cli.fleet.post import Posting, taken
from stepwell.cli.parts import POOL_FILE
from stepwell.cli.playing import read_play


def worker(
    run: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the run.")],
    gateway: Annotated[str, typer.Option(metavar="URL", help="Its gateway, without /v1.")],
    model: Annotated[str, typer.Option(help="The model's name there.")],
    pool: Annotated[
        str | None, typer.Option(metavar="FILE|URL", help="Its pool, a file or postgresql://…; default: the run's.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings, e.g. rollout.concurrency=16.")
    ] = None,
) -> None:
    """Play for a run: jobs come in as lines of JSON, what becomes of them goes out so. Ends with its input.

    `stepwell train mode=local` starts as many as `rollout.workers` says.
    """
    jobs, told = _own_pipes()
    posting = Posting(
        recipe=read_play(run, overrides or []),
        url=gateway.rstrip("/").removesuffix("/v1"),
        model=model,
        pool=pool or str(run / POOL_FILE),
    )
    with suppress(KeyboardInterrupt):  # whoever started it hears Ctrl-C too, and closes its input
        asyncio.run(_work(posting, jobs, partial(_tell, told)))


def _own_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Where jobs come from and events go. What environments print, and what they start, is kept away from both."""
    jobs, told = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return jobs, told


async def _work(posting: Posting, jobs: BinaryIO, tell: Callable[[Told], None]) -> None:
    lines = asyncio.StreamReader(limit=2**24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), jobs)
    async with taken(posting, tell) as post:
        async for line in lines:
            post.take(JOBS.decode(line))


def _tell(pipe: BinaryIO, told: Told) -> None:
    pipe.write(msgspec.json.encode(told) + b"\n")  # one call: other threads tell, too
    pipe.flush()
