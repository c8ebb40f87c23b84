"""Parts that commands put together without torch: task sets, pools, and the dashboard's pages."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from fastapi import FastAPI, Request

from stepwell.config import component_config
from stepwell.environments import ENVIRONMENTS
from stepwell.errors import NotFound
from stepwell.gateway.guard import EVERYBODY
from stepwell.gateway.keys import Principal
from stepwell.pool import store
from stepwell.pool.base import Pool
from stepwell.rollout.env import TaskSet, TaskSetConfig
from stepwell.types import Ids

POOL_FILE = "pool.sqlite"
LATEST_POOL = f"runs/latest/{POOL_FILE}"
PoolLocation = Annotated[
    str,
    typer.Option(
        "--pool", envvar="STEPWELL_POOL", metavar="FILE|URL", help="The pool's SQLite file, or postgresql://… ."
    ),
]
"""The pool that a command reads."""
RECIPE_FILE = "recipe.yaml"
_READ_ONLY = "The pool is open for reading only: serve it with `stepwell serve --pool FILE` to change anything."
_LOOKS_ONLY = "Your key lets you look, not change anything: it lacks the scope ingest."


def build_tasks(section: Mapping[str, Any]) -> TaskSet:
    """The task set that a recipe's `environment` section describes. Raises ConfigError."""
    return component_config(ENVIRONMENTS, TaskSetConfig, section).build()


@contextmanager
def open_pool(location: str | Path, *, read_only: bool = False, make: bool = False) -> Iterator[Pool]:
    """A pool for as long as the block lasts; what was appended is on disk when it ends.

    Raises NotFound if there is no such file, unless it is to be made: a typing mistake is no new pool.
    """
    if not make and "://" not in str(location) and not Path(location).exists():
        raise NotFound(f"no pool at {location}")
    pool = store.open_pool(location, read_only=read_only)
    try:
        yield pool
    finally:
        pool.close()


def mount_dashboard(
    app: FastAPI,
    pool: Pool,
    decoders: Mapping[str, Callable[[Ids], str]],
    may_write: bool = True,
    folder: Path | None = None,
) -> bool:
    """Add the dashboard's pages to `app`, with decoders by model name; False where NiceGUI is not installed.

    `may_write` is for a pool that is open for writing: on a gateway with keys, those whose key lets them may then.
    Around `folder` are those of the runs whose settings can be compared.
    """
    try:
        from stepwell.cli.run_records import runs_around  # noqa: PLC0415
        from stepwell.dashboard.mounting import mount  # noqa: PLC0415  # an extra: the gateway works without it
        from stepwell.dashboard.visit import Desk, Visitor  # noqa: PLC0415
    except ImportError:
        return False

    def visitor(request: Request) -> Visitor:
        principal: Principal = getattr(request.state, "principal", EVERYBODY)
        read_only = _READ_ONLY if not may_write else "" if principal.may("ingest") else _LOOKS_ONLY
        return Visitor(name=principal.name, read_only=read_only)

    runs = partial(runs_around, folder) if folder else dict
    mount(app, Desk(pool=pool, decoders=decoders, visitor=visitor, runs=runs))
    return True
