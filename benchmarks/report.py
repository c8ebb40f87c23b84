"""What all benchmark scripts share: the command line, the table, the JSON file and the check against goals."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure that a benchmark measured."""

    name: str
    value: float
    unit: str
    goal: float | None = None
    """The value to reach; None if the figure is for information."""
    better: Literal["lower", "higher"] = "lower"

    @property
    def met(self) -> bool:
        """Whether the goal, if there is one, is reached. NaN reaches none."""
        if self.goal is None:
            return True
        return self.value <= self.goal if self.better == "lower" else self.value >= self.goal


def main(title: str, measure: Callable[[bool], Sequence[Row]], arguments: Sequence[str] | None = None) -> None:
    """Run `measure(quick)`, print its rows as a table, and do what the command line asks.

    Exits with 1 under `--check` if a row misses its goal.
    """
    options = _parser(title).parse_args(arguments)
    rows = measure(options.quick)
    Console().print(_table(title, rows))
    if options.json is not None:
        options.json.write_text(json.dumps({"title": title, "rows": [asdict(row) for row in rows]}, indent=2) + "\n")
    missed = [row for row in rows if not row.met]
    if options.check and missed:
        sys.exit("goal missed: " + "; ".join(_miss(row) for row in missed))


def _parser(title: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--quick", action="store_true", help="smaller sizes: the whole script takes less than 40 s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE too")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a row misses its goal")
    return parser


def _table(title: str, rows: Sequence[Row]) -> Table:
    table = Table(title=title)
    table.add_column("what")
    for heading in ("value", "unit", "goal"):
        table.add_column(heading, justify="left" if heading == "unit" else "right")
    for row in rows:
        table.add_row(row.name, f"{row.value:,.4g}", row.unit, _goal(row), style=None if row.met else "red")
    return table


def _goal(row: Row) -> str:
    sign = "≤" if row.better == "lower" else "≥"
    return "" if row.goal is None else f"{sign} {row.goal:,g}"


def _miss(row: Row) -> str:
    return f"{row.name} is {row.value:,.4g} {row.unit}, goal {_goal(row)}"
