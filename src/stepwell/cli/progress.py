"""What a person sees of a run in the terminal: one progress bar with ETA, one line per update."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from stepwell.types import UpdateInfo


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
        m = dict(update.metrics)
        self._console.print(
            f"update {update.policy_version:>4}  reward {m['reward_mean']:6.3f}  entropy {m['entropy']:6.3f}  "
            f"kl {m['approx_kl']:.1e}  |ratio-1| {m['ratio_error']:.1e}  "
            f"collect {m['seconds_collect']:5.1f}s  learn {m['seconds_learn']:5.1f}s",
            highlight=False,
            soft_wrap=True,
        )
