"""`stepwell pool groups|tail|verify|prune|consumers`: what goes on in a pool, and keeping it well."""

import json
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from stepwell.cli.parts import LATEST_POOL, PoolLocation, open_pool
from stepwell.cli.selecting import Chosen, Where, selection_of
from stepwell.pool.keeping import Retention
from stepwell.types import Record, Step

_LOOK = 0.5
"""Seconds between two looks for something new."""


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command(epilog="Example: [bold]stepwell pool groups --channel default[/bold]")(groups)
    app.command(epilog="Example: [bold]stepwell pool consumers[/bold]")(consumers)
    app.command(epilog="Example: [bold]stepwell pool tail --after 1200[/bold]")(tail)
    app.command(epilog="Example: [bold]stepwell pool verify --repair[/bold]")(verify)
    app.command(epilog="Example: [bold]stepwell pool prune --max-age-days 30 --yes[/bold]")(prune)


def groups(
    pool: PoolLocation = LATEST_POOL,
    channel: Annotated[str | None, typer.Option(help="Only those collected for it.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Number of groups.")] = 50,
) -> None:
    """List groups, newest first: open, ready, or dropped and why; and how many trajectories the open ones lack."""
    with open_pool(pool, read_only=True) as opened:
        page = opened.groups(channel, limit=limit)
        missing = {refill.group_id: refill.missing for refill in opened.refills(channel)}
    table = Table("cursor", "group", "task", "channel", "state", "complete", "failed", "lacks", "why")
    for cursor, line in page:
        info = line.info
        complete = f"{line.complete} of {info.size}"
        lacks = str(missing.get(info.id, "")) if line.state == "open" else ""
        state = (line.state, complete, str(line.failed), lacks, line.why)
        table.add_row(str(cursor), info.id, info.task_id, info.channel, *state)
    Console().print(table)


def consumers(pool: PoolLocation = LATEST_POOL) -> None:
    """Say what each consumer holds, has had, and was never given."""
    with open_pool(pool, read_only=True) as opened:
        found = opened.consumption()
    table = Table("consumer", "epoch", "held", "acknowledged", "steps", "tokens", "dropped")
    for one in found:
        dropped = ", ".join(f"{reason}: {count:,}" for reason, count in one.dropped)
        counts = (str(one.epoch), *(f"{count:,}" for count in (one.held, one.acknowledged, one.steps, one.tokens)))
        table.add_row(one.consumer, *counts, dropped)
    Console().print(table)


def tail(
    pool: PoolLocation = LATEST_POOL,
    after: Annotated[int | None, typer.Option(min=0, help="From this cursor on; otherwise what comes next.")] = None,
    follow: Annotated[bool, typer.Option(help="Wait for more until interrupted.")] = True,
) -> None:
    """Print what is appended, one JSON object per line; Ctrl-C ends it."""
    with open_pool(pool, read_only=True) as opened:
        place = opened.stats().cursor if after is None else after
        while True:
            page = opened.log(after=place)
            for cursor, record in page:
                typer.echo(json.dumps(_line(cursor, record)))
                place = cursor
            if not page and not follow:
                return
            if not page:
                time.sleep(_LOOK)


def _line(cursor: int, record: Record) -> dict[str, object]:
    """A record in short: of a step the counts of its tokens."""
    line: dict[str, object] = {"cursor": cursor, "kind": type(record).__name__}
    for name in record.__slots__:
        value = getattr(record, name)
        if isinstance(value, str | int | float) and not (isinstance(record, Step) and name in ("request", "response")):
            line[name] = value
    if isinstance(record, Step):
        line |= {"prompt_tokens": len(record.prompt_ids), "response_tokens": len(record.response_ids)}
    return line


def verify(
    pool: PoolLocation = LATEST_POOL,
    repair: Annotated[bool, typer.Option("--repair", help="Make indexes and derived columns anew.")] = False,
) -> None:
    """Read everything and check it. Ends with 1 if something is wrong that was not mended."""
    with open_pool(pool, read_only=not repair) as opened, Progress(transient=True) as progress:
        task = progress.add_task("records", total=None)
        faults = opened.verify(repair=repair, progress=lambda records: progress.advance(task, records))
    console = Console()
    for fault in faults:
        mended = " (mended)" if repair and fault.repairable else ""
        console.print(f"{fault.kind} {fault.id}: {fault.message}{mended}", style="red", highlight=False)
    console.print(f"{len(faults):,} faults", highlight=False)
    if any(not (repair and fault.repairable) for fault in faults):
        raise typer.Exit(1)


def prune(
    pool: PoolLocation = LATEST_POOL,
    max_age_days: Annotated[float | None, typer.Option(min=0, help="What was opened earlier may go.")] = None,
    max_bytes: Annotated[int | None, typer.Option(min=0, help="Beyond so many bytes the oldest go.")] = None,
    max_lag: Annotated[int | None, typer.Option(min=0, help="Policy versions behind the newest update.")] = None,
    where: Where = None,
    chosen: Chosen = "",
    all_selected: Annotated[bool, typer.Option("--all-selected", help="All that is selected goes.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it. Without this, only what would go is said.")] = False,
) -> None:
    """Forget trajectories for good; those in datasets, leases and unfinished groups stay."""
    with open_pool(pool) as opened:
        kept = Retention(
            max_age=None if max_age_days is None else max_age_days * 86_400,
            max_bytes=max_bytes,
            max_lag=max_lag,
            selection=selection_of(opened, chosen, where) if where or chosen else None,
            all_selected=all_selected,
        )
        gone = opened.prune(kept, dry_run=not yes)
    done = "forgotten" if yes else "would be forgotten; say --yes to do it"
    typer.echo(f"{gone.trajectories:,} trajectories, {gone.steps:,} steps, {gone.bytes:,} bytes {done}")
