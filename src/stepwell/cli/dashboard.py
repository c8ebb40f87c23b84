"""`stepwell dashboard`: look at a pool without serving a model."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Final

import typer
from fastapi import FastAPI

from stepwell.cli.parts import POOL_FILE, mount_dashboard, open_pool
from stepwell.cli.serving import served, wait_for_interrupt
from stepwell.errors import MissingDependency
from stepwell.pool.store import without_password
from stepwell.types import Ids

_LATEST: Final = "runs/latest"


def dashboard(
    pool: Annotated[
        str, typer.Argument(help="A run's folder, a pool's SQLite file, or postgresql://… ; it is only read.")
    ] = _LATEST,
    same: Annotated[str | None, typer.Option("--pool", metavar="FILE|URL", help="The same, by name.")] = None,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8765,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
) -> None:
    """Show a pool in the browser, also while somebody else writes to it."""
    pool = same or pool
    serve_dashboard(Path(pool) / POOL_FILE if Path(pool).is_dir() else pool, host=host, port=port)


def serve_dashboard(pool: str | Path, *, host: str = "127.0.0.1", port: int = 0, may_write: bool = False) -> None:
    """Serve until Ctrl-C. Tokens of the runs in the pool's folder are shown as text, others as ids."""
    app, folder = FastAPI(openapi_url=None), Path(pool).parent
    with open_pool(pool, read_only=not may_write) as opened:
        if not mount_dashboard(app, opened, _decoders(folder), may_write=may_write, folder=folder):
            raise MissingDependency("the dashboard needs NiceGUI: pip install 'stepwell[dashboard]'")
        with served(app, host, port) as url:
            typer.echo(f"Dashboard of {without_password(pool)}: {url}/   (Ctrl-C ends it)")
            wait_for_interrupt()


def _decoders(folder: Path) -> Mapping[str, Callable[[Ids], str]]:
    """How to read the tokens of the runs in `folder`; none where the models' own packages are not installed."""
    try:
        from stepwell.cli.run_folder import decoders_of_runs  # noqa: PLC0415  # needs the extra `train`
    except ImportError:
        return {}
    return decoders_of_runs(folder)
