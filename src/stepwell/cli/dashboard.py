"""`stepwell dashboard`: look at a pool without serving a model."""

from pathlib import Path
from typing import Annotated

import typer
from fastapi import FastAPI

from stepwell.cli.assembly import mount_dashboard
from stepwell.cli.config import RecipeConfig
from stepwell.cli.serving import served, wait_for_interrupt
from stepwell.cli.training import POOL_FILE, RECIPE_FILE, read_recipe
from stepwell.errors import MissingDependency
from stepwell.policy.builtin import resolve_model
from stepwell.pool.store import SQLitePool
from stepwell.rendering.renderer import Renderer


def dashboard(
    pool: Annotated[Path, typer.Argument(help="A run's folder, or a pool's SQLite file; it is only read.")] = Path(
        "runs/latest"
    ),
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8765,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
) -> None:
    """Show a pool in the browser, also while somebody else writes to it."""
    folder = pool if pool.is_dir() else pool.parent
    recipe = read_recipe(folder) if (folder / RECIPE_FILE).exists() else None
    serve_dashboard(pool / POOL_FILE if pool.is_dir() else pool, recipe, host=host, port=port)


def serve_dashboard(pool: Path, recipe: RecipeConfig | None, *, host: str = "127.0.0.1", port: int = 0) -> None:
    """Serve until Ctrl-C; with a recipe, tokens are shown as the text that its model means by them."""
    opened = SQLitePool.open(pool, read_only=True)
    renderer = Renderer.from_directory(resolve_model(recipe.policy.model, recipe.seed)) if recipe else None
    app = FastAPI(openapi_url=None)
    try:
        if not mount_dashboard(app, opened, renderer):
            raise MissingDependency("the dashboard needs NiceGUI: pip install 'stepwell[dashboard]'")
        with served(app, host, port) as url:
            typer.echo(f"Dashboard of {pool}: {url}/   (Ctrl-C ends it)")
            wait_for_interrupt()
    finally:
        opened.close()
