"""`stepwell keys`: who may call the gateway."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, cast

import typer
from rich.console import Console
from rich.table import Table

from stepwell.gateway.keys import SCOPES, KeyRing, Scope

app = typer.Typer(
    name="keys",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Make, list and revoke the API keys of a gateway. They are stored as hashes; a running gateway reads the file "
    "when it starts.",
)

KEYS_FILE: Final = Path("runs/keys.json")
_File = Annotated[Path, typer.Option("--file", envvar="STEPWELL_KEYS", metavar="FILE", help="The file of keys.")]


@app.command(epilog="Example: [bold]stepwell keys create --name laptop --scope agent --scope ingest[/bold]")
def create(
    name: Annotated[str, typer.Option(help="What you call it.")],
    scope: Annotated[list[str], typer.Option(help=f"What it may do: {', '.join(SCOPES)}. Repeat for several.")],
    calls_per_minute: Annotated[int | None, typer.Option(min=1, help="Quota; without it there is none.")] = None,
    file: _File = KEYS_FILE,
) -> None:
    """Make a key, and show it this once."""
    text = KeyRing.open(file).create(name, cast(list[Scope], scope), calls_per_minute)
    console = Console()
    console.print(text, soft_wrap=True, highlight=False)
    Console(stderr=True).print(f"Keep it: {file} holds only its hash. Start the gateway with --keys {file}.")


@app.command(epilog="Example: [bold]stepwell keys ls[/bold]")
def ls(file: _File = KEYS_FILE) -> None:
    """List the keys, without their secrets."""
    table = Table("id", "name", "scopes", "calls per minute", "made (UTC)")
    for key in KeyRing.open(file).keys:
        made = datetime.fromtimestamp(key.created_at, UTC).strftime("%Y-%m-%d %H:%M")
        table.add_row(key.id, key.name, ", ".join(key.scopes), str(key.calls_per_minute or ""), made)
    Console().print(table)


@app.command(epilog="Example: [bold]stepwell keys revoke 3f9c2a7b1d04[/bold]")
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The id that `ls` shows.")], file: _File = KEYS_FILE
) -> None:
    """Forget a key."""
    KeyRing.open(file).revoke(key_id)
