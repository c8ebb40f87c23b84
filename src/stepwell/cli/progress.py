"""What a person sees of a run in the terminal: one progress bar with ETA, one line per update."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from stepwell.types import UpdateInfo

_COLUMNS: Final = (
    ("reward_mean", "reward {:6.3f}"),
    ("turns_per_trajectory", "turns {:4.1f}"),
    ("valid_call_rate", "valid {:4.0%}"),
    ("entropy", "entropy {:6.3f}"),
    ("approx_kl", "kl {:.1e}"),
    ("ratio_error", "|ratio-1| {:.1e}"),
    ("prefix_cache_hit_rate", "cache {:4.0%}"),
    ("tree_ratio", "tree {:4.0%}"),
    ("seconds_collect", "collect {:5.1f}s"),
    ("seconds_learn", "learn {:5.1f}s"),
)
"""Metrics in the line of an update, with how each is written; an update that trains nobody has only some of them."""


class Display:
    """Progress bar and update lines; on a terminal the bar moves, in a log file only the lines are printed."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description:<22}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=None, note="")

    @contextmanager
    def live(self) -> Iterator["Display"]:
        """Show the bar while the block lasts."""
        with self._bar:
            yield self

    def phase(self, name: str, total: int) -> None:
        """Begin a phase of `total` units."""
        self._bar.reset(self._task, total=total, description=name, note="")
        if not self._console.is_terminal:
            self._console.print(f"{name} …", highlight=False)

    def unit(self) -> None:
        """One unit of the phase is done."""
        self._bar.advance(self._task)

    def update(self, update: UpdateInfo) -> None:
        """One line for an update."""
        metrics = dict(update.metrics)
        told = [text.format(metrics[name]) for name, text in _COLUMNS if name in metrics]
        line = "  ".join([f"update {update.policy_version:>4}", *told])
        self._console.print(line, highlight=False, soft_wrap=True)
