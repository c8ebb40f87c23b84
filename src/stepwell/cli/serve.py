"""`stepwell serve`: a model at a URL, every step recorded."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from stepwell.cli.assembly import load_policy, serve_policy
from stepwell.cli.config import RecipeConfig
from stepwell.cli.parts import POOL_FILE, open_pool
from stepwell.cli.serving import wait_for_interrupt
from stepwell.cli.training import read_recipe
from stepwell.config import load_config
from stepwell.errors import InvalidRequest
from stepwell.policy.weights import load_newest


def serve(
    model: Annotated[str | None, typer.Option(help="Built-in model or checkpoint directory.")] = None,
    run: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Serve the newest version of this run instead.")
    ] = None,
    pool: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where steps go; default: the run's, or runs/serve.sqlite.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8000,
    host: Annotated[
        str, typer.Option(help="Address to listen on. There are no access keys yet: keep it on loopback.")
    ] = "127.0.0.1",
    tool_format: Annotated[str | None, typer.Option(help="How tool calls are written: hermes or line.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings of the recipe.")
    ] = None,
) -> None:
    """Serve a model to any OpenAI client and record every step. Ctrl-C ends it; nothing acknowledged is lost."""
    if host not in ("127.0.0.1", "localhost", "::1"):
        raise InvalidRequest(f"refusing to listen on {host}: there are no access keys yet, so only loopback is served")
    recipe = _recipe(model, run, tool_format, overrides or [])
    policy, renderer = load_policy(recipe)
    if run is not None:
        load_newest(run / "checkpoints", policy)
    path = pool or (run / POOL_FILE if run else Path("runs/serve.sqlite"))
    with open_pool(path) as opened, serve_policy(recipe, policy, renderer, opened, host=host, port=port) as served:
        console = Console()
        console.print(f"model      {policy.name}, version {policy.version}")
        console.print(f"base URL   {served.url}/v1   (or {served.url}/t/TRAJECTORY/v1)")
        console.print(f"dashboard  {served.url}/")
        console.print(f"pool       {path}")
        wait_for_interrupt()


def _recipe(model: str | None, run: Path | None, tool_format: str | None, overrides: list[str]) -> RecipeConfig:
    if run is not None and model is not None:
        raise InvalidRequest("give either --model or --run")
    if model is not None:
        overrides = [f"policy.model={model}", *overrides]
    if tool_format is not None:
        overrides = [f"tool_format={tool_format}", *overrides]
    return read_recipe(run, overrides) if run else load_config(RecipeConfig, None, overrides)
