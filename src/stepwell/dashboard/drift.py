"""How faithfully conversations went on, per model and agent, and what made them fork."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from stepwell.dashboard.tables import Table, number, right, text
from stepwell.pool.fidelity import Fidelity

_COLUMNS: Final = (
    text("model", "Model"),
    text("agent", "Agent", clip=True),
    number("steps", "Steps"),
    number("extended", "Extended"),
    number("client", "Forked by the client"),
    number("template", "By the template"),
    number("tokenizer", "By the tokenizer"),
    number("side", "Side calls"),
    right("drift", "Drift"),
)


class DriftTable:
    """A line per model and agent."""

    def __init__(self) -> None:
        """Build it, empty."""
        self._table = Table(_COLUMNS, key="key", label="How conversations went on")

    def show(self, told: Sequence[Fidelity]) -> None:
        """Fill it."""
        rows = [{"key": f"{one.model} {one.agent}", **asdict(one), "drift": f"{one.drift:.1%}"} for one in told]
        self._table.fill(rows)
