"""`stepwell dashboard`: look at a pool without serving a model."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Final

import typer
from fastapi import FastAPI

from stepwell.cli.parts import POOL_FILE, mount_dashboard
from stepwell.cli.serving import served, wait_for_interrupt
from stepwell.errors import MissingDependency
from stepwell.pool.store import SQLitePool
from stepwell.types import Ids

_LATEST: Final = Path("runs/latest")


def dashboard(
    pool: Annotated[Path, typer.Argument(help="A run's folder, or a pool's SQLite file; it is only read.")] = _LATEST,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8765,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
) -> None:
    """Show a pool in the browser, also while somebody else writes to it."""
    serve_dashboard(pool / POOL_FILE if pool.is_dir() else pool, host=host, port=port)


def serve_dashboard(pool: Path, *, host: str = "127.0.0.1", port: int = 0) -> None:
    """Serve until Ctrl-C. Tokens of the runs in the pool's folder are shown as text, others as ids."""
    opened = SQLitePool.open(pool, read_only=True)
    app = FastAPI(openapi_url=None)
    try:
        if not mount_dashboard(app, opened, _decoders(pool.parent)):
            raise MissingDependency("the dashboard needs NiceGUI: pip install 'stepwell[dashboard]'")
        with served(app, host, port) as url:
            typer.echo(f"Dashboard of {pool}: {url}/   (Ctrl-C ends it)")
            wait_for_interrupt()
    finally:
        opened.close()


def _decoders(folder: Path) -> Mapping[str, Callable[[Ids], str]]:
    """How to read the tokens of the runs in `folder`; none where the models' own packages are not installed."""
    try:
        from stepwell.cli.training import decoders_of_runs  # noqa: PLC0415  # needs the extra `train`
    except ImportError:
        return {}
    return decoders_of_runs(folder)
