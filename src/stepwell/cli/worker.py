"""`stepwell worker`: plays trajectories for a run that trains elsewhere, job by job."""

import asyncio
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

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
    posting = Posting(
        recipe=read_play(run, overrides or []),
        url=gateway.rstrip("/").removesuffix("/v1"),
        model=model,
        pool=pool or str(run / POOL_FILE),
    )
    with suppress(KeyboardInterrupt):  # whoever started it hears Ctrl-C too, and closes its input
        asyncio.run(_work(posting))


async def _work(posting: Posting) -> None:
    lines = asyncio.StreamReader(limit=2**24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with taken(posting, _tell) as post:
        async for line in lines:
            post.take(JOBS.decode(line))


def _tell(told: Told) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
    sys.stdout.buffer.flush()
