"""The panel that shows what merging shared prefixes saves, worked out when it is opened: it reads the whole group."""

import asyncio

from nicegui import ui

from stepwell.dashboard.tree import GroupTree, read_tree, tree_html
from stepwell.errors import StepwellError
from stepwell.pool.base import Pool


def tree_panel(pool: Pool, trajectory_id: str) -> None:
    """Closed at first; each opening works it out anew."""
    with ui.expansion("What training saves by merging shared prefixes").classes("w-full").props("dense") as panel:
        content = ui.column().classes("w-full gap-1")

    async def fill() -> None:
        if not panel.value:
            return
        content.clear()
        with content:
            ui.spinner(size="sm").props('aria-label="Reading the group"')
        try:
            tree = await asyncio.to_thread(lambda: read_tree(pool, pool.trajectory(trajectory_id)))
            said, picture = _saved(tree), tree_html(tree)
        except StepwellError as error:
            said, picture = f"The group cannot be read: {error}", ""
        if content.is_deleted:  # nobody looks any more
            return
        content.clear()
        with content:
            ui.label(said).classes("text-sm")
            ui.html(picture).classes("w-full")

    panel.on_value_change(fill)


def _saved(tree: GroupTree) -> str:
    saved = tree.saved
    if not saved.rows:
        return "No step here can be trained on yet."
    return (
        f"Trajectories: {tree.trajectories:,}; trainable steps: {saved.rows:,}; their tokens: {saved.flat_tokens:,}, "
        f"of which an update computes {saved.tokens:,} ({saved.ratio:.1%}). One bar for each stretch of tokens "
        "that the same rows have, the stronger its colour the more of them; point at one for its figures."
    )
