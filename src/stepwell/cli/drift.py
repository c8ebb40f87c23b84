"""`stepwell drift`: how faithfully conversations went on, per model and agent."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from stepwell.cli.parts import LATEST_POOL, PoolLocation, open_pool
from stepwell.pool.fidelity import Fidelity, fidelity

_MEANING: Final = """\
extended: the prompt begins with the earlier step's ids, as sampled. client: the client sent another history than it
had. template, tokenizer: the conversation went on, but its ids do not go on from those that were sampled: drift.
"""


def drift(
    pool: PoolLocation = LATEST_POOL,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Report drift per model and agent, and why prompts did not go on from the step before."""
    with open_pool(pool, read_only=True) as opened:
        lines = fidelity(opened.forks())
    if as_json:
        print(json.dumps([{**dataclasses.asdict(line), "drift": line.drift} for line in lines], indent=2))
        return
    console = Console()
    console.print(_table(lines))
    console.print(_MEANING, style="dim", end="")


def _table(lines: Sequence[Fidelity]) -> Table:
    table = Table(title="Drift")
    for name in ("model", "agent"):
        table.add_column(name)
    for name in ("steps", "roots", "extended", "client", "template", "tokenizer", "side", "drift"):
        table.add_column(name, justify="right")
    for line in lines:
        counts = (line.steps, line.roots, line.extended, line.client, line.template, line.tokenizer, line.side)
        style = "red" if line.drift else None
        table.add_row(line.model, line.agent, *(f"{count:,}" for count in counts), f"{line.drift:.1%}", style=style)
    return table
