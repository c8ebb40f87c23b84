"""The `stepwell` command. Each subcommand is imported when it is asked for: looking into a pool needs no torch."""

import difflib
import importlib
import logging
import os
import sys
import warnings
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer
import typer.core
import typer.main
from rich.console import Console
from rich.markup import escape

from stepwell import __version__
from stepwell.errors import StepwellError

_EXAMPLES: Final[Mapping[str, str]] = {
    "demo": "stepwell demo --quick",
    "serve": "stepwell serve --model smollm2-135m --port 8000",
    "run": "stepwell run --gateway http://127.0.0.1:8000 --tasks 8",
    "train": "stepwell train lookup learner.lr=3e-4",
    "up": "stepwell up cluster.yaml",
    "eval": "stepwell eval lookup --run runs/latest --samples 4 --k 1 --k 4",
    "worker": "stepwell worker --run runs/latest --gateway http://127.0.0.1:8000 --model lookup",
    "dashboard": "stepwell dashboard runs/latest",
    "pool": "stepwell pool ls",
    "show": "stepwell show tree",
    "drift": "stepwell drift --pool runs/serve.sqlite",
    "keys": "stepwell keys create --name laptop --scope agent",
    "doctor": "stepwell doctor",
}
"""Each command, the module `stepwell.cli.<name>` with a function or a Typer `app` in it, and how it is typed."""


class _LazyGroup(typer.core.TyperGroup):
    """Imports a command's module when the command is looked up."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """All names, in the order in which a newcomer meets them."""
        return list(_EXAMPLES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command; a misspelt one is answered with the nearest."""
        if cmd_name not in _EXAMPLES:
            nearest = difflib.get_close_matches(cmd_name, _EXAMPLES, n=1)
            hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
            ctx.fail(f"No such command {cmd_name!r}.{hint}")
        module = importlib.import_module(f"stepwell.cli.{cmd_name}")
        if not hasattr(module, "app"):
            single = typer.Typer(rich_markup_mode="rich", add_completion=False)
            single.command(name=cmd_name, epilog=f"Example: [bold]{_EXAMPLES[cmd_name]}[/bold]")(
                getattr(module, cmd_name)
            )
            return typer.main.get_command(single)
        return typer.main.get_command(module.app)


app = typer.Typer(
    name="stepwell",
    cls=_LazyGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    help="Train LLM agents by reinforcement learning, one interaction step at a time.",
)


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
    warnings.filterwarnings("ignore", category=FutureWarning, module="nicegui")  # of torch, which it only looks at
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it sets a chattier level for itself
    os.environ.setdefault("TQDM_DISABLE", "1")  # one progress bar at a time: ours
    # everything that Stepwell loads is on this machine already; a hub that cannot be reached must not cost a time-out
    os.environ.setdefault("HF_HUB_OFFLINE", "1")


def main() -> None:
    """Entry point: our own errors are one clear line and exit code 1; Ctrl-C is exit code 130."""
    try:
        app()
    except StepwellError as error:
        said = str(error).encode(errors="replace").decode()  # a server's words may hold lone surrogates
        Console(stderr=True).print(f"[bold red]error:[/bold red] {escape(said)}", highlight=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
