"""`stepwell pool savings`: what merging shared prefixes would save in training, group by group.

Rows and packing are the trainer's own (`stepwell.prefix_tree`), so what is said here is what an update on the group
computes.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from stepwell.cli.parts import LATEST_POOL, PoolLocation, open_pool
from stepwell.cli.selecting import Chosen, Where, searches, selection_of
from stepwell.curation.selection import Selection
from stepwell.pool.base import Pool, TrajectorySummary
from stepwell.prefix_tree.pack import MICRO_BATCH_TOKENS, Merging
from stepwell.prefix_tree.savings import Savings, savings, trained_rows
from stepwell.types import Trajectory

_PAGE = 1_000
"""Trajectories that are listed at once."""


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    app.command(
        "savings",
        epilog="Examples: [bold]stepwell pool savings[/bold]   "
        "[bold]stepwell pool savings --where statuses=\\[terminated,truncated] --budget 16384 --json[/bold]",
    )(savings_command)


def savings_command(
    pool: PoolLocation = LATEST_POOL,
    where: Where = None,
    chosen: Chosen = "",
    budget: Annotated[
        int, typer.Option(min=1, metavar="TOKENS", help="Of one pass, as learner.micro_batch_tokens.")
    ] = MICRO_BATCH_TOKENS,
    tree: Annotated[
        Merging, typer.Option(help="As learner.tree: merge where it saves enough, always, or never.")
    ] = "auto",
    limit: Annotated[int, typer.Option(min=0, max=10_000, help="Groups that are listed; the total is of all.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Say how many tokens training computes of each group, with shared prefixes merged and without; newest first.

    Each group is packed by itself. An update packs its groups together, so what groups share among each other, such as
    a system prompt, is saved on top. What people rejected is left out, as in a lease.
    """
    listed: list[tuple[str, Savings]] = []
    total = Savings(0, 0, 0)
    with open_pool(pool, read_only=not searches(where)) as opened, _bar() as progress:
        task = progress.add_task("trajectories", total=opened.stats().trajectories)
        for name, members in _groups(opened, selection_of(opened, chosen, where)):
            saved = savings(trained_rows(members), budget, tree)
            total += saved
            if saved.rows and len(listed) < limit:
                listed.append((name, saved))
            progress.advance(task, len(members))
    if as_json:
        groups = [{"group": name, **_shape(saved)} for name, saved in listed]
        typer.echo(json.dumps({"total": _shape(total), "groups": groups}, indent=2))
    else:
        Console().print(_table(listed, total))


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _groups(pool: Pool, selection: Selection) -> Iterator[tuple[str, list[Trajectory]]]:
    """The selected trajectories of each group, one group in memory at a time; one without a group stands for itself."""
    seen: set[str] = set()
    for line in _listed(pool, selection):
        group_id = line.info.group_id
        if group_id is None:
            name, of = line.info.id, {"trajectory_ids": (line.info.id,)}
        else:
            name, of = group_id, {"group_ids": (group_id,)}
        if name not in seen:
            seen.add(name)
            members = list(pool.scan(selection.model_copy(update=of)))
            refused = selection.sift(members)
            yield name, [one for one, why in zip(members, refused, strict=True) if not why]


def _listed(pool: Pool, selection: Selection) -> Iterator[TrajectorySummary]:
    before: int | None = None
    while page := pool.trajectories(selection, before=before, limit=_PAGE):
        yield from (summary for _, summary in page)
        before = page[-1][0]


def _shape(saved: Savings) -> dict[str, float]:
    return {**asdict(saved), "ratio": saved.ratio}


def _table(listed: list[tuple[str, Savings]], total: Savings) -> Table:
    table = Table("group", show_footer=True, caption="ratio: merged / flat")
    table.columns[0].overflow, table.columns[0].footer = "fold", "total"
    for heading, footer in zip(("rows", "flat", "merged", "ratio"), _figures(total), strict=True):
        table.add_column(heading, footer=footer, justify="right")
    for name, saved in listed:
        table.add_row(name, *_figures(saved))
    return table


def _figures(saved: Savings) -> tuple[str, ...]:
    return f"{saved.rows:,}", f"{saved.flat_tokens:,}", f"{saved.tokens:,}", f"{saved.ratio:.3f}"
