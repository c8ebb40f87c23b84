"""What merging shared prefixes saves: the prefix tree of some steps, to walk through, beside what training measured."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from nicegui import ui

from stepwell.dashboard.addresses import link, update_address
from stepwell.dashboard.charts import line, lines
from stepwell.dashboard.drift import DriftTable
from stepwell.dashboard.icicle import STYLE, Place
from stepwell.dashboard.reading.optimisation import (
    MEASURED,
    MOST_STEPS,
    NEWEST,
    Choice,
    Forest,
    Plan,
    by_depth,
    read_forest,
    read_update,
)
from stepwell.dashboard.reading.updates import measured
from stepwell.dashboard.visit import Visit
from stepwell.dashboard.walk import TreeWalk
from stepwell.dashboard.widgets import Tile, figure, heading
from stepwell.errors import NotFound, PoolError
from stepwell.pool.base import Pool
from stepwell.pool.fidelity import Fidelity
from stepwell.types import UpdateInfo

_EMPTY: Final = """\
Nothing here can be merged yet: there is no ready group with a step that can be trained on. A group is ready when its \
trajectories have ended and are rewarded; `stepwell demo` makes some.
"""
_ALL: Final = "all channels"
_TILES: Final = ("Rows", "Tokens of all rows", "Tokens computed", "Ratio", "Expected speed-up")


@dataclass(frozen=True, slots=True)
class _Names:
    """What can be chosen from."""

    channels: list[str]
    groups: list[str]


@dataclass(frozen=True, slots=True)
class _Read:
    """What is shown of a choice."""

    forest: Forest
    update: UpdateInfo | None
    forks: list[Fidelity]


async def build(parent: ui.column, visit: Visit, _: Mapping[str, str]) -> None:
    """The page: its choices at once, and the tree when it is read."""
    ui.add_css(STYLE)
    with parent:
        try:
            names = await asyncio.to_thread(_read_names, visit.pool)
        except PoolError as error:
            ui.label(f"The pool cannot be read: {error}").classes("text-negative").props('role="alert"')
            return
        view = OptimisationView(visit, names)
        ui.timer(0.01, view.read, once=True)


class OptimisationView:
    """The page's content; what is chosen is read anew, what is walked through is not."""

    def __init__(self, visit: Visit, names: _Names) -> None:
        """Build it, without a tree."""
        self._visit = visit
        self._choice = Choice.of(visit.query)
        self._choices(names)
        self._busy = ui.row().classes("items-center gap-3").props('role="status"')
        with self._busy:
            ui.spinner(size="md")
            ui.label("Reading the steps and merging them…")
        self._problem = ui.label().props('role="alert"')
        self._problem.set_visibility(False)
        self._content = ui.column().classes("w-full gap-4")
        with self._content:
            self._note = ui.label().classes("text-sm sw-quiet")
            with ui.row().classes("w-full gap-4 items-stretch"):
                self._tiles = {name: Tile(name) for name in _TILES}
            with ui.card().classes("w-full gap-2"):
                heading("The prefix tree")
                ui.label(
                    "Each bar is a stretch of tokens that the same rows have: as wide as its tokens, as high as its "
                    "rows, the darker the more of them. Click on one to see what is below it larger."
                ).classes("text-sm sw-quiet")
                self._walk = TreeWalk(visit, Place.of(visit.query), self._remember)
            with ui.card().classes("w-full"):
                heading("Sharing by depth")
                self._depth = ui.echart(lines([], "")).classes("w-full h-56")
            self._measured = ui.card().classes("w-full gap-2")
        with ui.card().classes("w-full") as self._breaks:
            heading("What breaks sharing: do prompts go on from what was sampled?")
            self._drift = DriftTable()
        self._content.set_visibility(False)
        self._breaks.set_visibility(False)

    def _choices(self, names: _Names) -> None:
        choice, look = self._choice, "dense outlined"
        channels = {"": _ALL} | {name: name for name in (*names.channels, choice.channel) if name}
        groups = list(dict.fromkeys([*([choice.group] if choice.group else []), *names.groups]))
        with ui.row().classes("w-full items-end gap-4"):
            self._channel = ui.select(channels, label="Newest groups of", value=choice.channel).props(look)
            self._newest = ui.select(list(NEWEST), label="How many", value=choice.newest).props(look)
            self._group = ui.select(groups, label="or one group", value=choice.group or None, with_input=True)
            self._group.props(f"{look} clearable")
            self._channel.classes("min-w-40")
            self._newest.classes("min-w-32")
            self._group.classes("min-w-56")
            for chosen in (self._channel, self._newest, self._group):
                chosen.on_value_change(self._chosen)
            if choice.run and choice.version is not None:
                ui.link(f"{choice.run}, version {choice.version}", update_address(choice.run, choice.version))
            again = ui.button(icon="refresh", on_click=self.read)
            again.props('flat round dense aria-label="Read again"').tooltip("Read again")

    async def _chosen(self) -> None:
        self._choice = Choice(group=self._group.value or "", channel=self._channel.value, newest=self._newest.value)
        self._walk.start()
        self._remember(None)
        await self.read()

    async def read(self) -> None:
        """Read what is chosen, and show it."""
        choice = self._choice
        self._busy.set_visibility(True)
        read: _Read | None = None
        try:
            read = await asyncio.to_thread(self._read, choice)
            problem = "" if read.forest.rows else _EMPTY
        except (NotFound, PoolError) as error:
            problem = f"There is nothing to show: {error}."
        if choice != self._choice:
            return  # something else was chosen meanwhile, which will be shown
        self._busy.set_visibility(False)
        self._problem.text = problem
        self._problem.set_visibility(bool(problem))
        self._content.set_visibility(not problem)
        if read is not None:
            self._breaks.set_visibility(bool(read.forks))
            self._drift.show(read.forks)
            if not problem:
                self._show(read.forest, read.update)

    def _read(self, choice: Choice) -> _Read:
        pool, folders = self._visit.pool, self._visit.runs()
        run = choice.run or choice.channel
        plan = Plan.of(folders[run].recipe) if run in folders else Plan()
        forest = read_forest(pool, choice, plan)
        update = read_update(pool, run or forest.channel, choice.version)
        return _Read(forest, update, self._visit.drift.read(pool))

    def _show(self, forest: Forest, update: UpdateInfo | None) -> None:
        self._note.text = _noted(forest)
        for name, told in zip(_TILES, _figures(forest), strict=True):
            self._tiles[name].show(*told)
        self._show_depth(forest)
        self._show_measured(update)
        self._walk.show(forest, self._address)

    def _remember(self, place: Place | None) -> None:
        self._visit.remember(**self._choice.query, **(place.query if place else {}))

    def _address(self, place: Place) -> str:
        return link(self._visit.path, **self._choice.query, **place.query)

    def _show_depth(self, forest: Forest) -> None:
        depths = by_depth(forest.tree)
        drawn = [
            line("rows that are so long", [(depth.position, round(depth.rows, 2)) for depth in depths]),
            line("different tokens left", [(depth.position, round(depth.distinct, 2)) for depth in depths]),
        ]
        self._depth.options.clear()
        self._depth.options.update(lines(drawn, "position in the row"))
        self._depth.update()

    def _show_measured(self, update: UpdateInfo | None) -> None:
        self._measured.clear()
        self._measured.set_visibility(update is not None)
        if update is None:
            return
        metrics = measured(update)
        with self._measured:
            with ui.row().classes("items-baseline gap-2"):
                heading("What training measured in")
                ui.link(
                    f"{update.run}, version {update.policy_version}", update_address(update.run, update.policy_version)
                )
            with ui.row().classes("gap-x-8 gap-y-2"):
                for name in (name for name in MEASURED if name in metrics):
                    with ui.column().classes("gap-0"):
                        ui.label(name).classes("text-xs sw-quiet")
                        ui.label(_number(metrics[name]))


def _read_names(pool: Pool) -> _Names:
    newest = [summary.info for _, summary in pool.groups(limit=200)]
    channels = sorted({info.channel for info in newest} | {origin.channel for origin in pool.origins()})
    return _Names(channels, [info.id for info in newest])


def _noted(forest: Forest) -> str:
    groups = "1 group" if forest.groups == 1 else f"{forest.groups:,} groups"
    notes = [f"{groups}, {forest.trajectories:,} trajectories."]
    if forest.cut:
        notes.append(f"There are more: a tree is made of about {MOST_STEPS:,} steps at most.")
    if forest.forgotten:
        notes.append(f"{forest.forgotten:,} groups of this update are not in the pool any more.")
    return " ".join(notes)


def _figures(forest: Forest) -> list[tuple[str, str]]:
    saved = forest.saved
    speed = 1 / saved.ratio if saved.ratio else 1.0
    return [
        (f"{saved.rows:,}", "one for each step that is trained on"),
        (f"{saved.flat_tokens:,}", "prompts and responses"),
        (f"{saved.tokens:,}", "once packed as training packs them"),
        (f"{saved.ratio:.1%}", "of the rows' tokens are computed"),
        (f"{speed:.1f} times", "of forward and backward passes, at most"),
    ]


def _number(value: float) -> str:
    return figure(value, ",.0f" if float(value).is_integer() else ",.3f")
