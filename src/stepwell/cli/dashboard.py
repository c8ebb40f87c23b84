"""`stepwell dashboard`: look at a pool without serving a model."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from fastapi import FastAPI

from stepwell.cli.assembly import model_name, mount_dashboard
from stepwell.cli.config import RecipeConfig
from stepwell.cli.serving import served, wait_for_interrupt
from stepwell.cli.training import POOL_FILE, RECIPE_FILE, read_recipe
from stepwell.errors import MissingDependency
from stepwell.policy.builtin import resolve_model
from stepwell.pool.store import SQLitePool
from stepwell.rendering.renderer import Renderer
from stepwell.types import Ids


def dashboard(
    pool: Annotated[Path, typer.Argument(help="A run's folder, or a pool's SQLite file; it is only read.")] = Path(
        "runs/latest"
    ),
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8765,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
) -> None:
    """Show a pool in the browser, also while somebody else writes to it."""
    serve_dashboard(pool / POOL_FILE if pool.is_dir() else pool, host=host, port=port)


def serve_dashboard(pool: Path, *, host: str = "127.0.0.1", port: int = 0) -> None:
    """Serve until Ctrl-C. Tokens of the runs in the pool's folder are shown as text, others as ids."""
    opened = SQLitePool.open(pool, read_only=True)
    recipes = [
        read_recipe(file.parent) for file in (*pool.parent.glob(RECIPE_FILE), *pool.parent.glob(f"*/{RECIPE_FILE}"))
    ]
    decoders = dict(map(_decoder, recipes))
    app = FastAPI(openapi_url=None)
    try:
        if not mount_dashboard(app, opened, decoders):
            raise MissingDependency("the dashboard needs NiceGUI: pip install 'stepwell[dashboard]'")
        with served(app, host, port) as url:
            typer.echo(f"Dashboard of {pool}: {url}/   (Ctrl-C ends it)")
            wait_for_interrupt()
    finally:
        opened.close()


def _decoder(recipe: RecipeConfig) -> tuple[str, Callable[[Ids], str]]:
    directory = resolve_model(recipe.policy.model, recipe.seed)
    return model_name(recipe), Renderer.from_directory(directory).decode
