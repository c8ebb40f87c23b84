"""What a person sees of a run in the terminal: a panel that changes in place, above it one line per update.

In a log file only the lines are printed.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

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
_PHASES: Final = ("collect", "learn", "publish")
_PART: Final = "reward/"


class Display:
    """Panel and update lines; on a terminal the panel moves, in a log file only the lines are printed."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description:<22}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            speed_estimate_period=600.0,  # updates are slow: an ETA from the last half minute would often know none
        )
        self._task = self._bar.add_task("", total=None)
        self._updates: list[UpdateInfo] = []
        self._now, self._since = "", time.monotonic()
        """What an update is at, and since when."""

    @contextmanager
    def live(self) -> Iterator["Display"]:
        """Show the panel while the block lasts."""
        if not self._console.is_terminal:
            yield self
            return
        with Live(get_renderable=self.panel, console=self._console, refresh_per_second=4, transient=True):
            yield self

    def phase(self, name: str, total: int) -> None:
        """Begin a phase of `total` units."""
        self._bar.reset(self._task, total=total, description=name)
        self._at("collect" if name == "train" else "")
        if not self._console.is_terminal:
            self._console.print(f"{name} …", highlight=False)

    def unit(self) -> None:
        """One unit of the phase is done."""
        self._bar.advance(self._task)

    def collected(self) -> None:
        """The groups of an update are there, and it begins."""
        self._at("learn")

    def update(self, update: UpdateInfo) -> None:
        """One line for an update."""
        self._updates.append(update)
        self._at("collect")
        metrics = dict(update.metrics)
        told = [text.format(metrics[name]) for name, text in _COLUMNS if name in metrics]
        line = "  ".join([f"update {update.policy_version:>4}", *told])
        self._console.print(line, highlight=False, soft_wrap=True)

    def panel(self) -> Panel:
        """How the run stands: the newest update's metrics, what is being done, and until when."""
        if not self._updates:
            return Panel(self._bar, title="stepwell", title_align="left")
        update = self._updates[-1]
        metrics = dict(update.metrics)
        table = Table.grid(padding=(0, 2))
        for label, text in (
            ("reward", _rewards(metrics, [dict(u.metrics).get("reward_mean") for u in self._updates])),
            ("staleness", _staleness(metrics)),
            ("tokens/s", _speed(metrics)),
            ("time", _phases(metrics)),
            ("now", f"{self._now} for {time.monotonic() - self._since:.0f} s" if self._now else ""),
        ):
            if text:
                table.add_row(Text(label, style="dim"), Text(text))
        return Panel(Group(table, self._bar), title=f"{update.run}, update {update.policy_version}", title_align="left")

    def _at(self, what: str) -> None:
        self._now, self._since = what, time.monotonic()


_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_SHOWN: Final = 40
"""Updates in the curve."""


def _rewards(metrics: Mapping[str, float], course: list[float | None]) -> str:
    """Mean reward with its parts, such as the success, and the course of the last updates."""
    means = [mean for mean in course if mean is not None]
    if "reward_mean" not in metrics or not means:
        return ""
    parts = [f"{name.removeprefix(_PART)} {value:.3f}" for name, value in metrics.items() if name.startswith(_PART)]
    return "  ".join([f"{metrics['reward_mean']:.3f}", *parts[:4], _curve(means[-_SHOWN:])])


def _curve(values: list[float]) -> str:
    low, high = min(values), max(values)
    width = (high - low) or 1.0
    return "".join(_BLOCKS[int((value - low) / width * (len(_BLOCKS) - 1))] for value in values)


def _staleness(metrics: Mapping[str, float]) -> str:
    if "staleness_mean" not in metrics:
        return ""
    return f"{metrics['staleness_mean']:.1f} updates on average, at most {metrics['staleness_max']:.0f}"


def _speed(metrics: Mapping[str, float]) -> str:
    """Tokens of an update over all of its time: what the whole run makes, not what its parts could."""
    seconds = sum(metrics.get(f"seconds_{phase}", 0.0) for phase in _PHASES)
    rates = (("sampled", "sampled_tokens"), ("trained on", "trained_tokens"))
    return ", ".join(f"{metrics[name] / seconds:,.0f} {what}" for what, name in rates if seconds and name in metrics)


def _phases(metrics: Mapping[str, float]) -> str:
    spent = {phase: metrics[f"seconds_{phase}"] for phase in _PHASES if f"seconds_{phase}" in metrics}
    total = sum(spent.values()) or 1.0
    return "  ".join(f"{phase} {seconds:.1f} s ({seconds / total:.0%})" for phase, seconds in spent.items())
