"""`stepwell up`: start the nodes of a Ray cluster that a file describes, train on them, and stop them."""

import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from stepwell.cli.cluster_file import ClusterConfig, check_run
from stepwell.cli.config import RecipeConfig
from stepwell.cli.dry_run import outlook, show_outlook
from stepwell.cli.parts import RECIPE_FILE
from stepwell.cli.serving import check_port
from stepwell.cli.train import train_in_view, what_to_run
from stepwell.config import load_config
from stepwell.errors import InvalidRequest, MissingDependency

if TYPE_CHECKING:
    from stepwell.cli.fleet.nodes import Nodes


def up(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The cluster: nodes, recipe and settings, as YAML.")],
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the nodes running once they have started, however the run ends.")
    ] = False,
    down: Annotated[bool, typer.Option("--down", help="Only stop the nodes of the file.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check all settings, print the commands and the plan, and end.")
    ] = False,
) -> None:
    """Start Ray on the nodes that FILE names, train on them as `stepwell train` does, and stop them again."""
    console = Console()
    if down and (keep or dry_run):
        raise InvalidRequest("--down only stops the nodes: give it alone")
    config = load_config(ClusterConfig, file)
    with _environment(RAY_AUTH_MODE=config.auth_mode):  # which Ray reads once, when it is imported
        nodes = _planned(config)
        if down:
            _stop(console, nodes)
            return
        recipe, folder = _run_of(config)
        check_run(config, recipe)
        if dry_run:
            _show(console, nodes)
            show_outlook(console, outlook(recipe, folder))
            return
        if config.nodes[0].local:
            _check_port_of_head(config, file, nodes.address)
        running, joined = _running(console, nodes, keep), nodes.joined()
        # heeded anew: Ray, when it joins, would have the process end at once
        with running, joined, _heeding_sigterm(), _environment(RAY_ADDRESS=nodes.address):
            console.print(f"cluster {nodes.address}   {len(nodes.nodes)} nodes", highlight=False)
            train_in_view(console, recipe, folder, config.gateway_port, f"stepwell up {file}")


def _planned(config: ClusterConfig) -> "Nodes":
    try:
        from stepwell.cli.fleet.nodes import planned  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise MissingDependency("a cluster needs Ray, here and on each node: pip install 'stepwell[ray]'") from error
    return planned(config)


def _run_of(config: ClusterConfig) -> tuple[RecipeConfig, Path]:
    settings = ["mode=ray", *config.settings]
    if config.folder is not None and (config.folder / RECIPE_FILE).exists():
        return what_to_run(settings, config.folder, None)
    return what_to_run([config.recipe, *settings], None, config.folder)


def _check_port_of_head(config: ClusterConfig, file: Path, address: str) -> None:
    try:
        check_port(config.port, "0.0.0.0")
    except InvalidRequest as error:
        raise InvalidRequest(
            f"port {config.port} of the head is taken on this machine. If this cluster is up, `stepwell up {file} "
            f"--down` stops it, and `RAY_ADDRESS={address} stepwell train …` trains on it; else set another `port`"
        ) from error


@contextmanager
def _running(console: Console, nodes: "Nodes", keep: bool) -> Iterator[None]:
    """The nodes for as long as the block lasts; those that started are stopped also where others did not."""
    started = False
    with _heeding_sigterm():
        try:
            console.print(f"starting {len(nodes.nodes)} nodes …", highlight=False)
            nodes.start()
            started = True
            yield
        finally:
            if keep and started:
                console.print(f"the nodes run on: RAY_ADDRESS={nodes.address} stepwell train …", highlight=False)
            else:
                _stop(console, nodes)


def _stop(console: Console, nodes: "Nodes") -> None:
    console.print(f"stopping {len(nodes.nodes)} nodes …", highlight=False)
    for text in nodes.stop():
        console.print(text, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def _heeding_sigterm() -> Iterator[None]:
    """What a service manager sends is taken for Ctrl-C, so that it leaves no node behind."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """These variables, for whatever of the block asks for them."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _show(console: Console, nodes: "Nodes") -> None:
    for what in ("start", "stop"):
        for node in nodes.nodes:
            command = shlex.join(node.start if what == "start" else node.stop)
            console.print(f"{what} {node.name}: {command}", highlight=False, markup=False, soft_wrap=True)
