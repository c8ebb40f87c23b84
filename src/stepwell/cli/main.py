"""The `stepwell` command."""

import logging
import os
import sys
from typing import Annotated

import typer
from rich.console import Console

from stepwell import __version__
from stepwell.cli import dashboard, demo, doctor, pool, run, serve, train
from stepwell.errors import StepwellError

app = typer.Typer(
    name="stepwell",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    help="Train LLM agents by reinforcement learning, one interaction step at a time.",
)
app.command(epilog="Example: [bold]stepwell demo --quick[/bold]")(demo.demo)
app.command(epilog="Example: [bold]stepwell serve --model smollm2-135m --port 8000[/bold]")(serve.serve)
app.command(epilog="Example: [bold]stepwell run --gateway http://127.0.0.1:8000 --tasks 8[/bold]")(run.run)
app.command(epilog="Example: [bold]stepwell train recipes/lookup.yaml learner.lr=3e-4[/bold]")(train.train)
app.command(epilog="Example: [bold]stepwell dashboard runs/latest/pool.sqlite[/bold]")(dashboard.dashboard)
app.command(epilog="Example: [bold]stepwell doctor[/bold]")(doctor.doctor)
app.add_typer(pool.app)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    verbose: Annotated[bool, typer.Option("--verbose", help="Log what the parts do.")] = False,
    _: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")] = False,
) -> None:
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    # everything that Stepwell loads is on this machine already; a hub that cannot be reached must not cost a time-out
    os.environ.setdefault("HF_HUB_OFFLINE", "1")


def main() -> None:
    """Entry point: our own errors are one clear line and exit code 1; Ctrl-C is exit code 130."""
    try:
        app()
    except StepwellError as error:
        Console(stderr=True).print(f"[bold red]error:[/bold red] {error}", highlight=False, markup=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
