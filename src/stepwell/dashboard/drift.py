"""How faithfully conversations went on, per model and agent, and what made them fork."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from nicegui import ui

from stepwell.pool.fidelity import Fidelity

_COLUMNS: Final[list[dict[str, Any]]] = [
    {"name": "model", "label": "Model", "field": "model", "align": "left"},
    {"name": "agent", "label": "Agent", "field": "agent", "align": "left"},
    {"name": "steps", "label": "Steps", "field": "steps"},
    {"name": "extended", "label": "Extended", "field": "extended"},
    {"name": "client", "label": "Forked by the client", "field": "client"},
    {"name": "template", "label": "By the template", "field": "template"},
    {"name": "tokenizer", "label": "By the tokenizer", "field": "tokenizer"},
    {"name": "side", "label": "Side calls", "field": "side"},
    {"name": "drift", "label": "Drift", "field": "drift"},
]


class DriftTable:
    """A line per model and agent."""

    def __init__(self) -> None:
        """Build it, empty."""
        self._table = ui.table(rows=[], columns=_COLUMNS).props("flat dense").classes("w-full")

    def show(self, told: Sequence[Fidelity]) -> None:
        """Fill it."""
        self._table.rows = [{**asdict(one), "drift": f"{one.drift:.1%}"} for one in told]
