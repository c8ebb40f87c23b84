"""`stepwell dashboard`: look at a pool without serving a model."""

from pathlib import Path
from typing import Annotated

import typer
import uvicorn
from fastapi import FastAPI

from stepwell.errors import MissingDependency
from stepwell.pool.store import SQLitePool


def dashboard(
    pool: Annotated[Path, typer.Argument(help="The pool's SQLite file; it is only read.")],
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8765,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
) -> None:
    """Show a pool in the browser, also while somebody else writes to it."""
    try:
        from stepwell.dashboard.pages import mount  # noqa: PLC0415  # optional: NiceGUI (`stepwell[dashboard]`)
    except ImportError as error:
        raise MissingDependency("the dashboard needs NiceGUI: pip install 'stepwell[dashboard]'") from error
    opened = SQLitePool.open(pool, read_only=True)
    app = FastAPI(openapi_url=None)
    mount(app, opened)
    typer.echo(f"Dashboard of {pool}: http://{host}:{port}")
    try:
        uvicorn.run(app, host=host, port=port, log_level="warning")
    finally:
        opened.close()
