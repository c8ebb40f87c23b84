"""`stepwell pool`: look into a pool from the command line, as tables for people or as JSON for programs."""

import dataclasses
import json
from typing import Annotated, Final

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepwell.cli import pool_care, pool_curation, pool_files, pool_savings, pool_scoring
from stepwell.cli.parts import LATEST_POOL, PoolLocation, open_pool
from stepwell.cli.selecting import Chosen, Where, searches, selection_of
from stepwell.errors import NotFound
from stepwell.pool.base import Pool, PoolStats, TrajectorySummary
from stepwell.rendering.wire import displayed
from stepwell.types import Group, Step, Trajectory

app = typer.Typer(
    name="pool", no_args_is_help=True, rich_markup_mode="rich", help="Look into a pool, curate it, take care of it."
)
for commands in (pool_curation, pool_files, pool_scoring, pool_savings, pool_care):
    commands.add_to(app)

_WIDE: Final = 120
"""Columns of a terminal from which on lists show who did what."""
_Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command(epilog="Example: [bold]stepwell pool ls --limit 20[/bold]")
def ls(
    pool: PoolLocation = LATEST_POOL,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Number of trajectories.")] = 50,
    before: Annotated[
        int | None, typer.Option(min=0, max=2**63 - 1, metavar="CURSOR", help="Only those older than this cursor.")
    ] = None,
    where: Where = None,
    chosen: Chosen = "",
    as_json: _Json = False,
) -> None:
    """List trajectories, newest first: all, or those that a selection wants."""
    with open_pool(pool, read_only=not searches(where)) as opened:
        selection = selection_of(opened, chosen, where) if where or chosen else None
        page = opened.trajectories(selection, before=before, limit=limit)
    if as_json:
        _print_json([{"cursor": cursor, **dataclasses.asdict(summary)} for cursor, summary in page])
    else:
        Console().print(_listing(page))


@app.command(epilog="Example: [bold]stepwell pool show traj-0198c2f0[/bold]")
def show(
    record_id: Annotated[str, typer.Argument(metavar="ID", help="Id of a trajectory, a group or a step.")],
    pool: PoolLocation = LATEST_POOL,
    as_json: _Json = False,
) -> None:
    """Show one trajectory step by step, one group, or one step."""
    with open_pool(pool, read_only=True) as opened:
        found = _find(opened, record_id)
    if as_json:
        _print_json(dataclasses.asdict(found))
    elif isinstance(found, Trajectory):
        Console().print(_trajectory(found))
        if found.annotations:
            Console().print(_notes(found))
    elif isinstance(found, Group):
        Console().print(_group(found))
    else:
        Console().print(_step(found))


@app.command(epilog="Example: [bold]stepwell pool stats --json[/bold]")
def stats(pool: PoolLocation = LATEST_POOL, as_json: _Json = False) -> None:
    """Count everything in the pool."""
    with open_pool(pool, read_only=True) as opened:
        counts = opened.stats()
    if as_json:
        _print_json(dataclasses.asdict(counts))
    else:
        Console().print(_counts(counts))


def _find(pool: Pool, record_id: str) -> Trajectory | Group | Step:
    for read in (pool.trajectory, pool.group, pool.step):
        try:
            return read(record_id)
        except NotFound:
            continue
    raise NotFound(f"the pool holds no trajectory, group or step {record_id!r}; `stepwell pool ls` lists trajectories")


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, default=_plain))


def _plain(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _listing(page: list[tuple[int, TrajectorySummary]]) -> Table:
    wide = Console().width >= _WIDE
    table = _table("cursor", "trajectory", *(["agent", "task"] if wide else []), "status", "reward", "steps", "version")
    for cursor, line in page:
        versions = _versions(line.policy_version_min, line.policy_version_max)
        info = line.info
        who = (info.agent, info.task_id) if wide else ()
        _add(table, str(cursor), info.id, *who, line.status, _reward(line.reward), str(line.steps), versions)
    return table


def _ending(trajectory: Trajectory) -> str:
    return f"{trajectory.status} ({trajectory.why})" if trajectory.why else trajectory.status


def _trajectory(trajectory: Trajectory) -> Table:
    parts = ", ".join(f"{name} {value:g}" for name, value in trajectory.reward_parts)
    table = _table("step", "version", "finish", "prompt", "response", "reward", "assistant")
    table.title = Text(f"{trajectory.info.id}: {_ending(trajectory)}, reward {_reward(trajectory.reward)}")
    table.caption = Text(f"reward parts: {parts}") if parts else None
    for step, reward in zip(trajectory.steps, trajectory.step_rewards, strict=True):
        versions = _versions(step.policy_version_min, step.policy_version_max)
        sizes = (str(len(step.prompt_ids)), str(len(step.response_ids)))
        _add(table, str(step.index), versions, step.finish_reason, *sizes, f"{reward:g}", assistant_text(step))
    return table


def _notes(trajectory: Trajectory) -> Table:
    """What people said of it and what happened around it."""
    indices = {step.id: str(step.index) for step in trajectory.steps}
    table = _table("step", "kind", "name", "value", "text")
    for note in trajectory.annotations:
        place = indices.get(note.target_id, "") if note.target == "step" else ""
        _add(table, place, note.kind, note.name, _reward(note.value), note.text)
    return table


def _group(group: Group) -> Table:
    table = _table("trajectory", "status", "reward", "steps")
    complete = sum(trajectory.complete for trajectory in group.trajectories)
    table.title = Text(f"{group.info.id}: task {group.info.task_id}, {complete} of {group.info.size} complete")
    for trajectory in group.trajectories:
        _add(table, trajectory.info.id, trajectory.status, _reward(trajectory.reward), str(len(trajectory.steps)))
    return table


def _step(step: Step) -> Table:
    table = _table("of the step", "value")
    table.title = Text(step.id)
    _add(table, "trajectory", step.trajectory_id)
    _add(table, "index", str(step.index))
    _add(table, "version", _versions(step.policy_version_min, step.policy_version_max))
    _add(table, "finish reason", step.finish_reason)
    _add(table, "token source", step.token_source)
    _add(table, "prompt tokens", str(len(step.prompt_ids)))
    _add(table, "response tokens", str(len(step.response_ids)))
    _add(table, "log-probability", f"{float(step.logprobs.sum()):.4f} nats")
    _add(table, "latency", f"{step.latency:.3f} s")
    _add(table, "assistant", assistant_text(step))
    return table


def _counts(counts: PoolStats) -> Table:
    table = _table("of the pool", "count")
    for field in dataclasses.fields(counts):
        if field.type in (int, "int"):
            _add(table, field.name.replace("_", " "), f"{getattr(counts, field.name):,}")
    for reason, count in counts.groups_dropped:
        _add(table, f"groups dropped: {reason}", f"{count:,}")
    for status, count in counts.trajectories_by_status:
        _add(table, f"trajectories {status}", f"{count:,}")
    return table


def assistant_text(step: Step) -> str:
    """What the assistant said in a step, its tool calls as `→ name(arguments)`; empty if no message was recorded."""
    try:
        message = json.loads(step.response) if step.response else {}
    except (json.JSONDecodeError, RecursionError):
        return step.response
    return displayed(message) if isinstance(message, dict) else step.response


def _reward(reward: float | None) -> str:
    return "-" if reward is None else f"{reward:g}"


def _versions(lowest: int | None, highest: int | None) -> str:
    if lowest is None:
        return "-"
    return str(lowest) if lowest == highest else f"{lowest}-{highest}"


def _table(*headings: str) -> Table:
    table = Table()
    for heading in headings:
        prose = heading in ("assistant", "text", "value", "task")
        table.add_column(heading, overflow="fold" if prose else "ellipsis", no_wrap=not prose)
    return table


def _add(table: Table, *cells: str) -> None:
    """A row of plain text: what agents wrote is not markup, and what a terminal cannot encode is replaced."""
    table.add_row(*(Text(cell.encode(errors="replace").decode()) for cell in cells))
