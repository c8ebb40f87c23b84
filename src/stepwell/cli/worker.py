"""`stepwell worker`: plays trajectories for a run that trains elsewhere, job by job."""

import asyncio
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from stepwell.cli.collecting import Workplace
from stepwell.cli.fleet.crew import Crew
from stepwell.cli.fleet.hand import Hand
from stepwell.cli.fleet.jobs import JOBS, Begun, Done, Ended, Failed, Groups, Job, Opened, Told, Trials
from stepwell.cli.parts import POOL_FILE, build_tasks, open_pool
from stepwell.cli.playing import build_algorithm, read_play
from stepwell.errors import StepwellError
from stepwell.pool.base import Pool, Receipt
from stepwell.types import GroupInfo, Record

_job: Final[ContextVar[int]] = ContextVar("job")
"""For which a trajectory is played."""


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
    recipe = read_play(run, overrides or [])
    with open_pool(pool or run / POOL_FILE, make=True) as opened:
        place = Workplace(
            recipe=recipe,
            tasks=build_tasks(recipe.environment),
            url=gateway.rstrip("/").removesuffix("/v1"),
            model=model,
            pool=opened,
        )
        hand = Hand(
            place=place,
            plan=build_algorithm(recipe).siblings,
            on_ending=lambda ending: _tell(Ended(_job.get(), ending)),
            log=_Telling(opened),
        )
        with suppress(KeyboardInterrupt):  # whoever started it hears Ctrl-C too, and closes its input
            asyncio.run(_work(hand))


async def _work(hand: Hand) -> None:
    lines = asyncio.StreamReader(limit=2**24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with hand, asyncio.TaskGroup() as group:
        jobs: set[asyncio.Task[None]] = set()
        async for line in lines:
            task = group.create_task(do(JOBS.decode(line), hand))
            jobs.add(task)
            task.add_done_callback(jobs.discard)
        for task in jobs:
            task.cancel()


async def do(job: Job, crew: Crew) -> None:
    """One job, to its end. What goes wrong is told, not raised."""
    _job.set(job.job)
    try:
        made = await _made(job, crew)
    except StepwellError as error:
        _tell(Failed(job.job, type(error).__name__, str(error)))
    except Exception as error:  # of an environment, say: the run must hear of it
        _tell(Failed(job.job, "EnvironmentFailed", f"{type(error).__name__}: {error}"))
    else:
        _tell(Done(job.job, made))


async def _made(job: Job, crew: Crew) -> int:
    if isinstance(job, Groups):
        return await crew.groups(iter(job.tasks), len(job.tasks), job.size, partial(_tell, Begun(job.job)))
    if isinstance(job, Trials):
        await crew.trials(job.tasks, job.temperature)
        return 0
    return await crew.siblings(iter(job.tasks), job.count, job.held, job.version)


@dataclass(frozen=True, slots=True)
class _Telling:
    """A pool that tells which groups are opened in it."""

    pool: Pool

    def append(self, records: Sequence[Record]) -> "Future[list[Receipt]]":
        for record in records:
            if isinstance(record, GroupInfo):
                _tell(Opened(_job.get(), record.id))
        return self.pool.append(records)

    def drop_group(self, group_id: str, reason: str) -> None:
        self.pool.drop_group(group_id, reason)


def _tell(told: Told) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
    sys.stdout.buffer.flush()
