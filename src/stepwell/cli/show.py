"""`stepwell show`: pictures, drawn in the terminal, of what the pool holds."""

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.tree import Tree

from stepwell.cli.parts import LATEST_POOL, PoolLocation, open_pool
from stepwell.curation.selection import Selection
from stepwell.errors import NotFound
from stepwell.pool.base import Pool
from stepwell.rendering.wire import answer_from_json
from stepwell.types import Group, Step, Trajectory

_PAGE = 200
_WIDTH = 60
"""Characters of a step's answer that are shown."""

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Draw what the pool holds.")


@app.callback()
def _only() -> None:
    """Draw what the pool holds."""


@app.command(epilog="Examples: [bold]stepwell show tree[/bold]   [bold]stepwell show tree traj-0198c2f0 --json[/bold]")
def tree(
    name: Annotated[
        str | None, typer.Argument(metavar="ID", help="A trajectory, or a task; the newest trunk if left out.")
    ] = None,
    pool: PoolLocation = LATEST_POOL,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Draw trajectories and the siblings that were forked from each of their turns, with rewards and advantages.

    An advantage is what a sibling earned more than the mean of its group.
    """
    with open_pool(pool, read_only=True) as opened:
        trunks = _trunks(opened, name)
        groups = _forked(opened, {trunk.info.id for trunk in trunks})
        if as_json:
            typer.echo(json.dumps([_facts(trunk, groups[trunk.info.id]) for trunk in trunks]))
            return
        for trunk in trunks:
            Console().print(_drawn(trunk, groups[trunk.info.id]))


def _trunks(pool: Pool, name: str | None) -> list[Trajectory]:
    if name is None:
        newest = pool.trajectories(Selection(sources=("trunk",)), limit=1)
        if not newest:
            raise NotFound("the pool holds no trunk: nothing was forked yet (see `stepwell run --fork`, and rtpo)")
        return [pool.trajectory(newest[0][1].info.id)]
    try:
        return [pool.trajectory(name)]
    except NotFound:
        found = pool.trajectories(Selection(sources=("trunk",), task_ids=(name,)), limit=50)
        if not found:
            raise NotFound(f"the pool holds no trajectory {name!r}, and no trunk of a task of that name") from None
        return [pool.trajectory(line.info.id) for _, line in reversed(found)]


def _forked(pool: Pool, trunks: set[str]) -> dict[str, list[Group]]:
    """The groups of siblings of each trunk, by turn."""
    found: dict[str, list[Group]] = {name: [] for name in trunks}
    for info in _group_infos(pool):
        if info.origin_id in found:
            found[info.origin_id].append(pool.group(info.id))
    for groups in found.values():
        groups.sort(key=lambda group: group.info.origin_index or 0)
    return found


def _group_infos(pool: Pool) -> Iterator[Any]:
    before: int | None = None
    while page := pool.groups(before=before, limit=_PAGE):
        yield from (line.info for _, line in page)
        before = page[-1][0]


def _drawn(trunk: Trajectory, groups: Sequence[Group]) -> Tree:
    drawn = Tree(f"[bold]{escape(trunk.info.task_id or trunk.info.id)}[/bold]  trunk {_ending(trunk)}")
    for step in _own(trunk):
        branch = drawn.add(f"{step.index}  {_said(step)}")
        for group in groups:
            if group.info.origin_index == step.index:
                for sibling, advantage in zip(group.trajectories, _advantages(group), strict=True):
                    own = _own(sibling)
                    first = _said(own[0]) if own else ""
                    told = "" if advantage is None else f"  advantage {advantage:+.2f}"
                    more = f"  +{len(own) - 1} turns" if len(own) > 1 else ""
                    branch.add(f"[dim]v{_version(own)}[/dim]  {first}{more}  {_ending(sibling)}{told}")
    return drawn


def _facts(trunk: Trajectory, groups: Sequence[Group]) -> dict[str, Any]:
    turns = {step.index: [] for step in _own(trunk)}  # type: dict[int, list[dict[str, Any]]]
    for group in groups:
        for sibling, advantage in zip(group.trajectories, _advantages(group), strict=True):
            facts = {"trajectory": sibling.info.id, "reward": sibling.reward, "advantage": advantage}
            turns.setdefault(group.info.origin_index or 0, []).append(
                facts | {"group": group.info.id, "steps": len(_own(sibling)), "status": sibling.status}
            )
    return {
        "trajectory": trunk.info.id,
        "task": trunk.info.task_id,
        "reward": trunk.reward,
        "turns": [{"index": index, "siblings": siblings} for index, siblings in sorted(turns.items())],
    }


def _advantages(group: Group) -> list[float | None]:
    rewards = [sibling.reward for sibling in group.trajectories if sibling.reward is not None]
    mean = float(np.mean(rewards)) if rewards else 0.0
    return [None if sibling.reward is None else sibling.reward - mean for sibling in group.trajectories]


def _own(trajectory: Trajectory) -> list[Step]:
    return [step for step in trajectory.steps if not step.side]


def _version(steps: Sequence[Step]) -> str:
    return str(steps[0].policy_version_min) if steps else "-"


def _ending(trajectory: Trajectory) -> str:
    reward = "no reward" if trajectory.reward is None else f"reward {trajectory.reward:g}"
    return f"[cyan]{trajectory.status}[/cyan]  {reward}"


def _said(step: Step) -> str:
    answer = answer_from_json(step.response)
    if answer is None:
        return f"{len(step.response_ids)} tokens"
    calls = " ".join(f"{call.name}{call.arguments}" for call in answer.tool_calls)
    text = " ".join(f"{answer.content} {calls}".split())
    return escape(text[:_WIDTH] + ("…" if len(text) > _WIDTH else ""))
