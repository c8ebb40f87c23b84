"""`stepwell pool export|import|backup`: the pool's data as files."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from stepwell.cli.parts import LATEST_POOL, PoolLocation, open_pool
from stepwell.cli.selecting import Chosen, Where, selection_of
from stepwell.curation.selection import Selection
from stepwell.errors import ConfigError
from stepwell.pool import archive
from stepwell.pool.archive import Entry
from stepwell.pool.base import Pool
from stepwell.types import GroupInfo

_BATCH = 256


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command(epilog="Example: [bold]stepwell pool export good.parquet --where min_reward=0.5[/bold]")(export)
    app.command("import", epilog="Example: [bold]stepwell pool import good.parquet --pool new.sqlite[/bold]")(import_)
    app.command(epilog="Example: [bold]stepwell pool backup copy.sqlite[/bold]")(backup)


def export(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="Where nothing is yet.")],
    pool: PoolLocation = LATEST_POOL,
    where: Where = None,
    chosen: Chosen = "",
    format: Annotated[
        str | None, typer.Option(metavar="parquet|jsonl|hf", help="Otherwise as the suffix says.")
    ] = None,
    view: Annotated[str, typer.Option(metavar="rl|sft|preferences", help="Exact records, or text to train on.")] = "rl",
) -> None:
    """Write trajectories to a file or a Hugging Face folder."""
    if view not in archive.VIEWS:
        raise ConfigError(f"--view must be one of {', '.join(archive.VIEWS)}, got {view!r}")
    with open_pool(pool, read_only=True) as opened, Progress(transient=True) as progress:
        task = progress.add_task("rows", total=None)
        wanted = selection_of(opened, chosen, where) if where or chosen else None
        written = archive.write(
            path,
            _entries(opened, wanted),
            format=format,
            view=archive.VIEWS[view](),
            progress=lambda rows: progress.update(task, completed=rows),
        )
    Console().print(f"{written.rows:,} rows, {written.bytes:,} bytes in {path}", highlight=False)


def _entries(pool: Pool, selection: Selection | None) -> Iterator[Entry]:
    """Every trajectory with its group and all that was ever said of it."""
    infos: dict[str, GroupInfo] = {}
    for trajectory in pool.scan(selection):
        group_id = trajectory.info.group_id
        if group_id is not None and group_id not in infos:
            infos[group_id] = pool.group(group_id).info
        group = infos[group_id] if group_id is not None else None
        yield Entry(group=group, trajectory=trajectory, notes=tuple(pool.notes(trajectory.info.id)))


def import_(
    path: Annotated[Path, typer.Argument(metavar="PATH", exists=True, help="A file or folder.")],
    pool: PoolLocation = LATEST_POOL,
    format: Annotated[str | None, typer.Option(metavar="parquet|jsonl|hf", help="Otherwise as the path says.")] = None,
    skip: Annotated[bool, typer.Option("--skip-errors", help="Leave out malformed lines instead of stopping.")] = False,
) -> None:
    """Read an export into a pool. What the pool holds already stays as it is."""
    reading = archive.read(path, format=format, on_error="skip" if skip else "stop")
    records = iter(reading)
    stored = held = 0
    refused: list[str] = []
    with open_pool(pool, make=True) as opened, Progress(transient=True) as progress:
        task = progress.add_task("records", total=None)
        while batch := list(islice(records, _BATCH)):
            for receipt in opened.append(batch).result():
                stored += receipt.error is None and not receipt.duplicate
                held += receipt.duplicate
                if receipt.error is not None:
                    refused.append(str(receipt.error))
            progress.advance(task, len(batch))
    console = Console()
    console.print(f"{stored:,} records stored, {held:,} were there, {len(refused):,} refused", highlight=False)
    for line in [*refused[:20], *map(str, reading.flaws.first[:20])]:
        console.print(line, style="red", highlight=False)
    if refused:
        raise typer.Exit(1)


def backup(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="Where nothing is yet.")],
    pool: PoolLocation = LATEST_POOL,
) -> None:
    """Copy the whole pool to a file, as it is at one moment, while others go on."""
    with open_pool(pool, read_only=True) as opened:
        opened.backup(path)
    typer.echo(f"{path}: {path.stat().st_size:,} bytes")
