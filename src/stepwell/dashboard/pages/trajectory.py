"""One trajectory: its conversation, and under each answer the tokens that were really sampled."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from nicegui import ui

from stepwell.dashboard.frame import follow
from stepwell.dashboard.reading.trajectory import StepView, Turn, read_steps
from stepwell.dashboard.tokens import FULL_COLOUR, colour, tokens_html
from stepwell.dashboard.tree import GroupTree, read_tree, tree_html
from stepwell.dashboard.visit import Visit
from stepwell.dashboard.widgets import status_badge
from stepwell.errors import NotFound, StepwellError
from stepwell.types import Step, Trajectory

ReadTree = Callable[[Trajectory], Awaitable[GroupTree]]
"""Reads the prefix tree of a trajectory's group."""


async def build(parent: ui.column, visit: Visit, path: Mapping[str, str]) -> None:
    """The page of the trajectory that `path` names."""
    view = TrajectoryView(parent, visit, lambda shown: asyncio.to_thread(read_tree, visit.pool, shown))

    async def show() -> None:
        try:
            view.show(await asyncio.to_thread(visit.pool.trajectory, path["trajectory_id"]))
        except NotFound:
            view.show_missing(path["trajectory_id"])

    await follow(visit, show)


class TrajectoryView:
    """The page's content, drawn anew when the trajectory has changed."""

    def __init__(self, parent: ui.column, visit: Visit, read: ReadTree) -> None:
        """Draw nothing yet."""
        self._parent = parent
        self._visit = visit
        self._read_tree = read
        self._shown: Trajectory | None = None

    def show(self, trajectory: Trajectory) -> None:
        """Draw the trajectory, unless this is what is shown: an open token view must not close for nothing."""
        if trajectory == self._shown:
            return
        self._shown = trajectory
        self._parent.clear()
        with self._parent:
            _summary(trajectory, self._visit)
            self._tree(trajectory)
            for view in read_steps(trajectory):
                self._step(view)
            if not trajectory.steps:
                ui.label("No step yet: the agent has not called the model.").classes("sw-quiet")

    def show_missing(self, trajectory_id: str) -> None:
        """Say that there is no such trajectory."""
        self._parent.clear()
        with self._parent:
            ui.label(f"There is no trajectory {trajectory_id!r} in this pool.")

    def _tree(self, trajectory: Trajectory) -> None:
        """What merging saves, worked out when it is opened: it reads the whole group."""
        with ui.expansion("What training saves by merging shared prefixes").classes("w-full").props("dense") as panel:
            content = ui.column().classes("w-full gap-1")

        async def fill() -> None:
            if not panel.value:
                return
            try:
                tree = await self._read_tree(trajectory)
                said, picture = _saved(tree), tree_html(tree)
            except StepwellError as error:
                said, picture = f"The group cannot be read: {error}", ""
            if content.is_deleted:  # the trajectory has gone on meanwhile, or nobody looks any more
                return
            content.clear()
            with content:
                ui.label(said).classes("text-sm")
                ui.html(picture).classes("w-full")

        panel.on_value_change(fill)

    def _step(self, view: StepView) -> None:
        if view.rewritten:
            ui.label("The client changed earlier messages; from here on the conversation is another.").classes(
                "text-orange-8"
            )
        for turn in view.seen:
            _turn(turn)
        with ui.card().classes("w-full gap-2"):
            with ui.row().classes("items-baseline gap-3"):
                ui.label(f"Step {view.step.index}").classes("font-medium")
                ui.label(_facts(view)).classes("text-sm sw-quiet")
            if view.answer is not None:
                ui.label(view.answer.text).classes("sw-text")
            self._tokens(view.step)
            self._prompt(view.step)

    def _tokens(self, step: Step) -> None:
        with ui.expansion("Sampled tokens", value=True).classes("w-full").props("dense"):
            _legend()
            ui.html(tokens_html(step, self._visit.decoders.get(step.model))).classes("sw-tokens")

    def _prompt(self, step: Step) -> None:
        """The exact prompt, made only when it is opened: prompts are long, and seldom looked at."""
        with ui.expansion("Prompt, as the engine was given it").classes("w-full").props("dense") as panel:
            text = ui.label().classes("sw-text font-mono text-sm")

        def fill() -> None:
            ids, decode = step.prompt_ids, self._visit.decoders.get(step.model)
            text.text = decode(ids) if decode else " ".join(map(str, ids.tolist()))

        panel.on_value_change(fill)


def _summary(trajectory: Trajectory, visit: Visit) -> None:
    info = trajectory.info
    with ui.card().classes("w-full gap-2"):
        with ui.row().classes("items-center gap-3"):
            ui.label(info.id).classes("text-lg font-medium")
            status_badge(trajectory.status)
        if trajectory.why:
            ui.label(trajectory.why).classes("sw-text")
        opened = visit.time(info.created_at)
        facts = {"reward": _reward(trajectory), "task": info.task_id, "group": info.group_id or "none"}
        facts |= {"agent": info.agent, "source": info.source, "opened": opened}
        with ui.row().classes("gap-x-8 gap-y-2"):
            for name, value in facts.items():
                with ui.column().classes("gap-0"):
                    ui.label(name).classes("text-xs sw-quiet")
                    ui.label(value or "not given").classes("sw-text")


def _reward(trajectory: Trajectory) -> str:
    if trajectory.reward is None:
        return "none yet"
    parts = ", ".join(f"{name} {value:.3g}" for name, value in trajectory.reward_parts)
    return f"{trajectory.reward:.3g} ({parts})"


def _facts(view: StepView) -> str:
    step = view.step
    low, high = step.policy_version_min, step.policy_version_max
    facts = [
        f"policy version {low}" if low == high else f"policy versions {low} to {high}",
        f"{len(step.prompt_ids):,} prompt tokens",
        f"{len(step.response_ids):,} sampled",
        f"ended by {step.finish_reason}",
        f"{step.latency:.2f} s",
        f"reward {view.reward:.3g}",
    ]
    if step.token_source != "engine":
        facts.append("tokens guessed from text")
    return " · ".join(facts)


def _turn(turn: Turn) -> None:
    with ui.column().classes("w-full gap-0 px-4"):
        ui.label(turn.role).classes("text-xs sw-quiet")
        ui.label(turn.text).classes("sw-text")


def _legend() -> None:
    with ui.row().classes("items-center gap-2 text-xs sw-quiet"):
        ui.label("certain")
        for surprise in range(6):
            ui.element("div").classes("w-5 h-3 rounded").style(
                f"background: {colour(-surprise * FULL_COLOUR / 5)}; border: 1px solid rgba(128, 128, 128, 0.4)"
            )
        ui.label(f"surprising (log-probability {-FULL_COLOUR:g} or less); point at a token for its figures")


def _saved(tree: GroupTree) -> str:
    saved = tree.saved
    if not saved.rows:
        return "No step here can be trained on yet."
    return (
        f"Trajectories: {tree.trajectories:,}; trainable steps: {saved.rows:,}; their tokens: {saved.flat_tokens:,}, "
        f"of which an update computes {saved.tokens:,} ({saved.ratio:.1%}). One bar for each stretch of tokens "
        "that the same rows have, the stronger its colour the more of them; point at one for its figures."
    )
