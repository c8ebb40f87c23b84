"""`stepwell pool verdict|tag|note|select|dataset`: what people decide about stored data."""

import dataclasses
import json
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from stepwell.cli.parts import LATEST_POOL, PoolLocation, open_pool
from stepwell.cli.selecting import Chosen, Where, selection_of
from stepwell.errors import NotFound
from stepwell.pool.base import Pool
from stepwell.pool.frozen import DatasetInfo
from stepwell.pool.lease import Unit
from stepwell.types import Annotation, Verdict

_Target = Literal["step", "trajectory"]
_Id = Annotated[str, typer.Argument(metavar="ID", help="Id of a trajectory or of a step.")]
_Why = Annotated[str, typer.Option("--why", help="A reason, for those who look later.")]

datasets = typer.Typer(no_args_is_help=True, help="Freeze what a selection wants, list what was frozen, compare.")


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command(epilog="Example: [bold]stepwell pool verdict traj-0198c2f0 reject --why 'made up'[/bold]")(verdict)
    app.command(epilog="Example: [bold]stepwell pool tag traj-0198c2f0 good[/bold]")(tag)
    app.command(epilog="Example: [bold]stepwell pool note traj-0198c2f0 'look at step 3'[/bold]")(note)
    app.command(epilog="Example: [bold]stepwell pool select good --where min_reward=0.5[/bold]")(select)
    app.add_typer(datasets, name="dataset")


def verdict(
    record_id: _Id,
    how: Annotated[Verdict, typer.Argument(metavar="accept|reject|clear", help="The verdict.")],
    pool: PoolLocation = LATEST_POOL,
    why: _Why = "",
) -> None:
    """Say whether it may be trained on. It changes what the next lease hands over."""
    with open_pool(pool) as opened:
        opened.put(Annotation.verdict(_kind(opened, record_id), record_id, how, why))
    typer.echo(f"{record_id}: {how}")


def tag(
    record_id: _Id,
    label: Annotated[str, typer.Argument(metavar="TAG", help="The label.")],
    pool: PoolLocation = LATEST_POOL,
    remove: Annotated[bool, typer.Option("--remove", help="Take the tag away.")] = False,
) -> None:
    """Give it a label, by which it can be selected."""
    with open_pool(pool) as opened:
        opened.put(Annotation.tag(_kind(opened, record_id), record_id, label, present=not remove))
    typer.echo(f"{record_id}: {'without' if remove else 'with'} the tag {label}")


def note(
    record_id: _Id,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The remark.")],
    pool: PoolLocation = LATEST_POOL,
    about: Annotated[str, typer.Option(help="What the remark is about.")] = "note",
) -> None:
    """Write a remark beside it."""
    with open_pool(pool) as opened:
        kind = _kind(opened, record_id)
        opened.put(Annotation(target=kind, target_id=record_id, kind="note", name=about, text=text))
    typer.echo(f"{record_id}: noted")


def select(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Name to save it under; empty: list those saved.")] = "",
    pool: PoolLocation = LATEST_POOL,
    where: Where = None,
    chosen: Chosen = "",
    delete: Annotated[bool, typer.Option("--delete", help="Forget the selection.")] = False,
) -> None:
    """Save a selection under a name, show one, or list all."""
    with open_pool(pool, read_only=not (where or chosen or delete)) as opened:
        if delete:
            opened.delete_selection(name)
        elif where or chosen:
            opened.save_selection(name, selection_of(opened, chosen, where))
        elif name:
            typer.echo(json.dumps(opened.selection(name).written(), indent=2, ensure_ascii=False))
        else:
            for saved in opened.selections():
                typer.echo(saved)


@datasets.command(epilog="Example: [bold]stepwell pool dataset freeze train --where min_reward=0.5[/bold]")
def freeze(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the dataset.")],
    pool: PoolLocation = LATEST_POOL,
    where: Where = None,
    chosen: Chosen = "",
    unit: Annotated[Unit, typer.Option(help="What it consists of.")] = "group",
) -> None:
    """Make the next version of a dataset out of what is wanted now; nothing changes if nothing has changed."""
    with open_pool(pool) as opened:
        made = opened.freeze(name, selection_of(opened, chosen, where), unit=unit)
    Console().print(_table([made]))


@datasets.command("ls", epilog="Example: [bold]stepwell pool dataset ls[/bold]")
def ls(pool: PoolLocation = LATEST_POOL) -> None:
    """List all versions of all datasets."""
    with open_pool(pool, read_only=True) as opened:
        Console().print(_table(opened.datasets()))


@datasets.command(epilog="Example: [bold]stepwell pool dataset diff train@1 train@2[/bold]")
def diff(
    before: Annotated[str, typer.Argument(metavar="NAME[@VERSION]", help="A version; the newest if none is named.")],
    after: Annotated[str, typer.Argument(metavar="NAME[@VERSION]", help="A version; the newest if none is named.")],
    pool: PoolLocation = LATEST_POOL,
) -> None:
    """Say which trajectories one version has and another has not, or has otherwise."""
    with open_pool(pool, read_only=True) as opened:
        found = dataclasses.asdict(opened.dataset_diff(before, after))
    for what, sign in (("added", "+"), ("removed", "-"), ("changed", "~")):
        for trajectory_id in found[what]:
            typer.echo(f"{sign} {trajectory_id}")


def _table(found: list[DatasetInfo]) -> Table:
    table = Table("dataset", "unit", "units", "trajectories", "steps", "tokens", "mean reward", "versions", "digest")
    table.columns[0].overflow, table.columns[0].no_wrap = "fold", True  # its end is what tells versions apart
    for one in found:
        of = one.manifest
        reward = "" if of.reward_mean is None else f"{of.reward_mean:.3f}"
        versions = "" if of.policy_version_min is None else f"{of.policy_version_min}-{of.policy_version_max}"
        counts = [f"{count:,}" for count in (of.units, of.trajectories, of.steps, of.tokens)]
        table.add_row(f"{one.name}@{one.version}", one.unit, *counts, reward, versions, one.digest[:12])
    return table


def _kind(pool: Pool, record_id: str) -> _Target:
    try:
        pool.step(record_id)
    except NotFound:
        pool.trajectory(record_id)
        return "trajectory"
    return "step"
