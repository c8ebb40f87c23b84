"""`stepwell doctor`: what this machine has, what is missing, what for, and how to get it."""

import json
from dataclasses import asdict
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stepwell.cli.examination import Finding, State, machine, places, programs
from stepwell.cli.packages import packages

_MARKS: Final[dict[State, str]] = {
    "ok": "[green]ok[/green]",
    "missing": "[yellow]missing[/yellow]",
    "wrong": "[red]wrong[/red]",
}


def doctor(
    strict: Annotated[bool, typer.Option(help="Exit with 1 if anything at all is missing or wrong.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as a JSON list.")] = False,
) -> None:
    """Check hardware, packages and their versions, programs, ports and folders."""
    findings = [*machine(), *packages(), *programs(), *places()]
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _show(findings)
    if strict and not all(finding.state == "ok" for finding in findings):
        raise typer.Exit(1)


def _show(findings: list[Finding]) -> None:
    table = Table("", "what", "found", "for", "remedy", box=None)
    for finding in findings:
        remedy = "" if finding.state == "ok" else finding.remedy
        told = (finding.what, finding.found, finding.purpose, remedy)
        table.add_row(_MARKS[finding.state], *map(escape, told))  # the brackets of extras are no markup
    Console().print(table, highlight=False)
