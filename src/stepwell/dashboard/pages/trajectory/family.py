"""A trajectory among others: the branches of its own steps, its group, what was forked from it, and its origin."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from nicegui import ui

from stepwell.dashboard.addresses import link, trajectory_address
from stepwell.dashboard.reading.family import MOST, Branch, Family, branches
from stepwell.dashboard.reading.trajectory import Head
from stepwell.dashboard.tables import Table, number, right, text
from stepwell.dashboard.trajectories import STATUS, TRAJECTORY
from stepwell.dashboard.widgets import heading
from stepwell.pool.base import GroupSummary, TrajectorySummary

Go = Callable[[int], Awaitable[None]]
"""Shows the step with an index."""
_WHY: Final = {
    "": "taken anew",
    "root": "another beginning",
    "client": "the client sent another history",
    "template": "drift by the chat template",
    "tokenizer": "drift by the tokenizer",
    "side": "beside the agent's work",
}
_MOST_BRANCHES: Final = 200
_COLUMNS: Final = (
    TRAJECTORY,
    STATUS,
    right("reward", "Reward"),
    number("steps", "Steps"),
    text("compare", "Compare"),
)


def relatives(head: Head, family: Family, go: Go) -> None:
    """A card for each kind of relatives that there are."""
    own = branches(head.steps)
    if len(own) > 1:
        _branches(own, go)
    if family.group is not None and family.group.origin_id:
        _origin(family.group.origin_id, family.group.origin_index or 0)
    if family.forked:
        _forked(family.forked)
    if len(family.members) > 1:
        _members(head.summary.info.id, family.members)


def _branches(own: list[Branch], go: Go) -> None:
    with ui.expansion(f"Its steps form {len(own)} branches").classes("w-full").props("dense"):
        for branch in own[:_MOST_BRANCHES]:
            with ui.row().classes("items-center gap-2").style(f"padding-left: {min(branch.depth, 5) * 1.25}rem"):
                ui.button(_span(branch), on_click=partial(go, branch.first)).props("flat dense no-caps")
                ui.label(_parting(branch)).classes("text-sm sw-quiet")
        if len(own) > _MOST_BRANCHES:
            ui.label(f"… and {len(own) - _MOST_BRANCHES} more").classes("text-sm sw-quiet")


def _span(branch: Branch) -> str:
    return f"Step {branch.first}" if branch.steps == 1 else f"Steps {branch.first} to {branch.last}"


def _parting(branch: Branch) -> str:
    why = _WHY.get(branch.why, branch.why)
    if branch.parent is None:
        return "the beginning" if branch.depth == 0 and branch.first == 0 else why
    return f"parts from step {branch.parent}: {why}"


def _origin(trajectory_id: str, index: int) -> None:
    with ui.card().classes("w-full gap-1"):
        heading("Where it comes from")
        with ui.row().classes("gap-1"):
            ui.label(f"Its group takes step {index} anew of")
            ui.link(trajectory_id, trajectory_address(trajectory_id, step=index)).classes("sw-text")


def _forked(sets: tuple[GroupSummary, ...]) -> None:
    many = f"{MOST} or more" if len(sets) == MOST else str(len(sets))
    with ui.expansion(f"Sets of siblings that were forked from it: {many}").classes("w-full").props("dense"):
        for found in sets:
            with ui.row().classes("items-center gap-2"):
                ui.link(f"step {found.info.origin_index} anew", link("/representation", group_ids=found.info.id))
                said = f"{found.trajectories} siblings, {found.complete} complete, {found.state}"
                ui.label(said).classes("text-sm sw-quiet")


def _members(own_id: str, members: tuple[TrajectorySummary, ...]) -> None:
    with ui.expansion(f"Its group: {len(members)} trajectories").classes("w-full").props("dense"):
        table = Table(_COLUMNS, key="id", label="Its group")
        table.fill([_row(member, own_id) for member in members])


def _row(member: TrajectorySummary, own_id: str) -> dict[str, object]:
    other = member.info.id
    return {
        "id": other,
        "id_href": trajectory_address(other),
        "status": member.status,
        "reward": "" if member.reward is None else f"{member.reward:.3g}",
        "steps": member.steps,
        "compare": "shown here" if other == own_id else "compare with this one",
        "compare_href": "" if other == own_id else link("/compare", left=own_id, right=other),
    }
