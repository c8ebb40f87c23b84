"""Walking through a prefix tree: the picture, the way back, and what the segment holds where one is."""

from collections.abc import Callable
from typing import Final

from nicegui import ui
from nicegui.events import GenericEventArguments

from stepwell.dashboard.addresses import trajectory_address
from stepwell.dashboard.icicle import Bar, Place, bars, picture, place_of, shown, words
from stepwell.dashboard.reading.optimisation import Forest
from stepwell.dashboard.visit import Visit
from stepwell.dashboard.widgets import heading

_TEXT: Final = 2_000
"""Tokens of a segment that are decoded at most."""
_STEPS: Final = 50
"""Steps that end in a segment and are listed at most."""
_CRUMBS: Final = 4
"""Segments of the way to where one is that are named at either end."""

# A click on a bar is told to the server, which draws what is below it; with a key held down it is an ordinary link.
_ON_CLICK: Final = """(event) => {
  const bar = event.target.closest('[data-bar]');
  if (!bar || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  emit(Number(bar.dataset.bar));
}"""


class TreeWalk:
    """The widgets; `show` begins with a tree, clicks go on."""

    def __init__(self, visit: Visit, place: Place | None, went: Callable[[Place | None], None]) -> None:
        """Build them, empty.

        Args:
            visit: whose page it is.
            place: where to begin; None: at the whole tree.
            went: told of each place that somebody goes to; None is the whole tree.
        """
        self._visit, self._place, self._went = visit, place, went
        self._forest: Forest | None = None
        self._address: Callable[[Place], str] = lambda _: ""
        self._drawn: list[Bar] = []
        self._way = ui.row().classes("items-center gap-1 text-sm").props('role="navigation" aria-label="Way back"')
        self._picture = ui.html().classes("w-full").on("click", self._clicked, js_handler=_ON_CLICK)
        self._segment = ui.column().classes("w-full gap-2")

    def show(self, forest: Forest, address: Callable[[Place], str]) -> None:
        """Walk through this tree from now on, from where one is; `address` gives the deep link of a place."""
        self._forest, self._address = forest, address
        self._draw(forest)

    def start(self) -> None:
        """Go to the whole tree with the next one that is shown."""
        self._place = None

    def _clicked(self, event: GenericEventArguments) -> None:
        number = event.args
        if self._forest is not None and isinstance(number, int) and 0 <= number < len(self._drawn):
            self._go(place_of(self._forest, self._drawn[number].segments))

    def _go(self, place: Place | None) -> None:
        self._place = place
        self._went(place)
        if self._forest is not None:
            self._draw(self._forest)

    def _draw(self, forest: Forest) -> None:
        here = shown(forest, self._place)
        self._drawn = bars(forest, here)
        self._picture.content = picture(forest, self._drawn, self._visit.decoders, self._address)
        self._way.clear()
        with self._way:
            self._show_way(forest, here)
        self._segment.clear()
        with self._segment:
            if len(here) == 1:
                _show_segment(forest, here[0], self._visit)

    def _show_way(self, forest: Forest, here: tuple[int, ...]) -> None:
        """The way back: each segment from the beginning to where one is."""
        everything = here == forest.families[-1]
        self._crumb("All", None, last=everything)
        if everything:
            return
        path = forest.path(here[0])[: None if len(here) == 1 else -1]
        for number, segment in enumerate(path):
            if number == _CRUMBS and len(path) > 2 * _CRUMBS:
                ui.label("/ …")
            if _CRUMBS <= number < len(path) - _CRUMBS:
                continue
            ui.label("/")
            depth = forest.tree.segments[segment].depth
            last = len(here) == 1 and segment == here[0]
            self._crumb(f"from token {depth:,}", place_of(forest, [segment]), last=last)
        if len(here) > 1:
            ui.label(f"/ {len(here):,} neighbours")

    def _crumb(self, name: str, place: Place | None, *, last: bool) -> None:
        if last:
            ui.label(name).classes("font-medium").props('aria-current="location"')
            return
        ui.button(name, on_click=lambda: self._go(place)).props("flat dense no-caps size=sm")


def _show_segment(forest: Forest, number: int, visit: Visit) -> None:
    """One segment: its text, and the steps whose rows end in it."""
    segment = forest.tree.segments[number]
    tokens = segment.stop - segment.start
    heading(
        f"Tokens {segment.depth:,} to {segment.depth + tokens - 1:,}, in {forest.through[number]:,} of "
        f"{len(forest.rows):,} rows"
    )
    _show_text(forest, number, tokens, visit)
    ending = [row for row, leaf in zip(forest.rows, forest.tree.leaves, strict=True) if leaf == number]
    if not ending:
        return
    ui.label("Steps whose rows end here").classes("text-sm sw-quiet")
    for row in ending[:_STEPS]:
        with ui.row().classes("items-baseline gap-3"):
            address = trajectory_address(row.trajectory_id, step=row.index)
            ui.link(f"{row.trajectory_id}, step {row.index}", address)
            ui.label(f"{row.prompt:,} prompt tokens, {row.response:,} sampled").classes("text-sm sw-quiet")
    if len(ending) > _STEPS:
        ui.label(f"and {len(ending) - _STEPS:,} more").classes("text-sm sw-quiet")


def _show_text(forest: Forest, number: int, tokens: int, visit: Visit) -> None:
    with ui.expansion("Its text", value=True).classes("w-full").props("dense"):
        said = words(forest, number, visit.decoders, _TEXT)
        if said:
            ui.label(said).classes("sw-text text-sm font-mono max-h-80 overflow-auto").props("tabindex=0")
            if tokens > _TEXT:
                ui.label(f"and {tokens - _TEXT:,} tokens more").classes("text-sm sw-quiet")
        else:
            ui.label("Nobody here can read the tokens of this model.").classes("text-sm sw-quiet")
