"""`stepwell serve`: a model at a URL, every step recorded."""

import gc
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from pydantic import Field
from rich.console import Console

from stepwell.cli.logs import LogFormat, LogLevel, set_up
from stepwell.cli.parts import POOL_FILE, mount_dashboard, open_pool
from stepwell.cli.serving import served, wait_for_interrupt
from stepwell.cli.telemetry import exported_spans
from stepwell.cli.upstreams import connected
from stepwell.config import Config, load_config
from stepwell.engines import ENGINES
from stepwell.errors import InvalidRequest
from stepwell.gateway.app import create_app
from stepwell.gateway.config import GatewayConfig
from stepwell.gateway.keys import KeyRing
from stepwell.pool.store import without_password
from stepwell.rendering.renderer import Renderer

_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_POOL: Final = "runs/serve.sqlite"


class ServeConfig(Config):
    """What `stepwell serve --engine` takes as KEY=VALUE when a server samples: what of a recipe needs no torch."""

    engine: Mapping[str, Any] = Field(default_factory=dict)
    """Settings of the engine, such as `engine.idle_timeout=60`."""
    tool_format: str | None = None
    """How tool calls are written: a key of `TOOL_FORMATS`; None lets the chat template decide."""
    gateway: GatewayConfig = GatewayConfig()
    """The gateway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where calls come in and steps go."""

    pool: str | None
    keys: KeyRing | None
    host: str
    port: int
    until_stdin_ends: bool


def serve(
    model: Annotated[str | None, typer.Option(help="Built-in model or checkpoint directory, sampled here.")] = None,
    run: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Serve the newest version of this run instead.")
    ] = None,
    engine: Annotated[
        str, typer.Option(help=f"What samples: local, or a server at --url: {', '.join(ENGINES)}.")
    ] = "local",
    url: Annotated[
        list[str] | None, typer.Option(help="Base URL of the engine's server. Repeat for replicas of one model.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="DIR", help="With --url: directory with the model's tokenizer and template.")
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|URL",
            help="Where steps go, a file or postgresql://… ; default: the run's, or runs/serve.sqlite.",
        ),
    ] = None,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen on. Beyond loopback --keys is needed.")] = "127.0.0.1",
    keys: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Let in only who has a key of this file: `stepwell keys`.")
    ] = None,
    tool_format: Annotated[
        str | None, typer.Option(help="How tool calls are written, if the chat template does not tell: hermes, …")
    ] = None,
    until_stdin_ends: Annotated[
        bool, typer.Option("--until-stdin-ends", help="End with the standard input, as a child of another process.")
    ] = False,
    log_format: Annotated[LogFormat, typer.Option(help="How log lines are written: text or json.")] = "text",
    log_level: Annotated[LogLevel, typer.Option(help="From which level on; info has a line per call.")] = "warning",
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings, such as gateway.max_calls=64.")
    ] = None,
) -> None:
    """Serve a model to any client of OpenAI's or Anthropic's APIs and record every step.

    Ctrl-C ends it; calls under way are answered first, and nothing acknowledged is lost.
    """
    set_up(log_format, log_level)
    place = _Place(pool=pool, keys=_keys(host, keys), host=host, port=port, until_stdin_ends=until_stdin_ends)
    settings = [] if tool_format is None else [f"tool_format={tool_format}"]
    settings += overrides or []
    if engine == "local" and url:
        raise InvalidRequest(f"--url needs an engine that has a server: --engine {' or '.join(ENGINES)}")
    if engine != "local" and (model is not None or run is not None):
        raise InvalidRequest("--model and --run are for the local engine; a server has its model, give --tokenizer")
    with exported_spans():
        if engine == "local":
            _serve_local(model, run, settings, place)
        else:
            _serve_upstream(engine, url or [], tokenizer, settings, place)


def _keys(host: str, file: Path | None) -> KeyRing | None:
    if file is None and host not in _LOOPBACK:
        raise InvalidRequest(
            f"refusing to listen on {host} without keys: make one with `stepwell keys create` and give --keys FILE"
        )
    ring = KeyRing.open(file) if file else None
    if ring is not None and not ring.keys:
        raise InvalidRequest(f"there is no key in {file}: make one with `stepwell keys create --file {file}`")
    return ring


def _serve_local(model: str | None, run: Path | None, settings: list[str], place: _Place) -> None:
    # torch comes with these, and a gateway in front of a server needs none
    from stepwell.cli.assembly import load_policy, model_name, serve_policy  # noqa: PLC0415
    from stepwell.cli.config import RecipeConfig  # noqa: PLC0415
    from stepwell.cli.run_folder import read_recipe  # noqa: PLC0415
    from stepwell.policy.builtin import resolve_model  # noqa: PLC0415
    from stepwell.policy.weights import load_newest  # noqa: PLC0415

    if run is not None and model is not None:
        raise InvalidRequest("give either --model or --run")
    if model is not None:
        settings = [f"policy.model={model}", *settings]
    recipe = read_recipe(run, settings) if run else load_config(RecipeConfig, None, settings)
    if run is not None and recipe.engine is not None:
        directory = resolve_model(recipe.policy.model, recipe.seed)
        aliases = (*recipe.gateway.model_aliases, model_name(recipe))  # by which those who play know it
        gateway = recipe.gateway.model_copy(update={"model_aliases": aliases})
        renderer = Renderer.from_directory(directory, recipe.tool_format)
        _serve_connected(recipe.engine, renderer, gateway, place.pool or str(run / POOL_FILE), run, place)
        return
    policy, renderer = load_policy(recipe)
    if run is not None:
        load_newest(run, policy)
    path = place.pool or (run / POOL_FILE if run else _POOL)
    with (
        open_pool(path, make=True) as opened,
        serve_policy(
            recipe, policy, renderer, opened, host=place.host, port=place.port, keys=place.keys, folder=run
        ) as serving,
    ):
        _announce(f"{policy.name}, version {policy.version}", serving.url, path)
        wait_for_interrupt(until_stdin_ends=place.until_stdin_ends)


def _serve_upstream(kind: str, urls: list[str], tokenizer: Path | None, settings: list[str], place: _Place) -> None:
    if not urls or tokenizer is None:
        raise InvalidRequest(f"--engine {kind} needs --url and --tokenizer")
    config = load_config(ServeConfig, None, settings)
    renderer = Renderer.from_directory(tokenizer, config.tool_format)
    section = {**config.engine, "use": kind, "urls": urls}
    path = place.pool or _POOL
    _serve_connected(section, renderer, config.gateway, path, Path(path).parent, place)


def _serve_connected(
    section: Mapping[str, Any], renderer: Renderer, gateway: GatewayConfig, path: str, folder: Path, place: _Place
) -> None:
    engine = connected(section, renderer)
    with open_pool(path, make=True) as opened:
        app = create_app(engine, renderer, opened, gateway, place.keys)
        mount_dashboard(app, opened, {engine.model: renderer.decode}, folder=folder)
        spare_the_collector()
        with served(app, place.host, place.port, gateway.drain_seconds) as address:
            _announce(f"{engine.model}, at {', '.join(section['urls'])}", address, path)
            wait_for_interrupt(until_stdin_ends=place.until_stdin_ends)


def spare_the_collector() -> None:
    """Let the garbage collector leave alone what is loaded by now, and come less often: a call makes many objects, but
    no cycles. A twentieth of a call's CPU time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 20, 20)


def _announce(model: str, address: str, pool: str | Path) -> None:
    console = Console()
    console.print(f"model      {model}")
    console.print(f"base URL   {address}/v1   (or {address}/t/TRAJECTORY/v1; Anthropic's clients: without /v1)")
    console.print(f"dashboard  {address}/")
    console.print(f"pool       {without_password(pool)}")
