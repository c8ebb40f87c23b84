"""Writes what docs/reference/ takes from the code: `make docs` runs it, tests/test_docs.py checks it.

settings.md and cli.md are made as a whole; other pages, and docs/papers.md, are written by hand around blocks that are
filled in here:
`<!-- generated: NAME -->` to `<!-- end -->`, with NAME in `BLOCKS`.
"""

import contextlib
import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import GenericAlias, SimpleNamespace
from typing import Annotated, Any, get_args, get_origin

from prometheus_client.metrics import MetricWrapperBase
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import stepwell
from stepwell.algorithms.presets import Preset, load_preset, preset_names
from stepwell.config import Config
from stepwell.engines.base import CacheUse
from stepwell.errors import MissingDependency
from stepwell.gateway.app import create_app
from stepwell.gateway.gate import Gate
from stepwell.gateway.guard import needed_scope
from stepwell.gateway.ingest.feedback import EventWire, FeedbackWire
from stepwell.gateway.ingest.wire import (
    EndWire,
    GroupWire,
    RewardWire,
    SamplingWire,
    SessionWire,
    StepWire,
    TrajectoryWire,
)
from stepwell.gateway.observe import Meters
from stepwell.gateway.problems import STATUS, Problem, anthropic_type

REFERENCE = Path(__file__).parent / "reference"
PAPERS = Path(__file__).parent / "papers.md"
NOTE = "<!-- Written by `make docs` from the code: do not edit. -->\n"


@dataclasses.dataclass(frozen=True)
class Option:
    """An option or argument of a command."""

    names: tuple[str, ...]
    """`--port`, or the name in capitals for an argument."""
    default: str
    help: str


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of the CLI, `stepwell pool export` say."""

    name: str
    help: str
    options: tuple[Option, ...]


@dataclasses.dataclass(frozen=True)
class Setting:
    """One field of a config model."""

    name: str
    kind: str
    default: str
    help: str


@dataclasses.dataclass(frozen=True)
class Settings:
    """One config model."""

    name: str
    module: str
    help: str
    fields: tuple[Setting, ...]


def commands() -> list[Command]:
    """All commands that the CLI has, with nested ones under their whole name."""
    from typer.main import get_command  # noqa: PLC0415  # so that settings() works where the CLI does not import

    app = importlib.import_module("stepwell.cli.main").app
    return list(_walk("stepwell", get_command(app)))


def _walk(name: str, command: Any) -> Iterator[Command]:
    names = command.list_commands(None) if hasattr(command, "list_commands") else []
    children = {child: command.get_command(None, child) for child in names}
    if not children or command.params:
        options = tuple(_option(param) for param in command.params if "--help" not in param.opts)
        yield Command(name, inspect.cleandoc(command.help or ""), options)
    for child in children:
        yield from _walk(f"{name} {child}", children[child])


def _option(param: Any) -> Option:
    flags = (*param.opts, *param.secondary_opts)
    names = flags if any(flag.startswith("-") for flag in flags) else (param.name.upper(),)
    needed = param.required or param.default is None or callable(param.default)
    return Option(names, "" if needed else str(param.default), getattr(param, "help", None) or "")


def settings() -> list[Settings]:
    """All config models of the package, by module and name."""
    for module in pkgutil.walk_packages(stepwell.__path__, "stepwell."):
        if not module.name.endswith(".__main__"):
            with contextlib.suppress(MissingDependency):  # of an adapter to a package that is not installed here
                importlib.import_module(module.name)
    found = {kind for kind in _subclasses(Config) if kind.__module__.startswith("stepwell.")}
    return [_settings(kind) for kind in sorted(found, key=lambda kind: (kind.__module__, kind.__name__))]


def _subclasses(kind: type[Config]) -> Iterator[type[Config]]:
    for child in kind.__subclasses__():
        yield child
        yield from _subclasses(child)


def _settings(kind: type[BaseModel]) -> Settings:
    fields = tuple(_setting(name, field) for name, field in kind.model_fields.items())
    return Settings(kind.__name__, kind.__module__, " ".join((kind.__doc__ or "").split()), fields)


def _setting(name: str, field: FieldInfo) -> Setting:
    value = field.get_default(call_default_factory=True)
    default = f"{type(value).__name__}()" if isinstance(value, BaseModel) else repr(value)
    help_text = " ".join((field.description or "").split())
    return Setting(name, _kind(field.annotation), "required" if field.is_required() else default, help_text)


def _kind(annotation: Any) -> str:
    """A type as people write it."""
    if isinstance(annotation, GenericAlias):  # what is annotated inside is a constraint, which the help text tells
        parts = tuple(get_args(part)[0] if get_origin(part) is Annotated else part for part in get_args(annotation))
        annotation = get_origin(annotation)[parts]
    text = annotation.__name__ if inspect.isclass(annotation) and not get_args(annotation) else str(annotation)
    return re.sub(r"\b(typing|pathlib|collections\.abc|stepwell(\.\w+)+)\.", "", text)


def cli_page() -> str:
    """docs/reference/cli.md."""
    parts = ["# Commands\n", NOTE]
    for command in commands():
        parts += [f"## `{command.name}`\n", f"{command.help}\n"]
        if command.options:
            rows = [(", ".join(f"`{name}`" for name in o.names), _code(o.default), o.help) for o in command.options]
            parts.append(_table(("option", "default", "meaning"), rows))
    return "\n".join(parts)


def settings_page() -> str:
    """docs/reference/settings.md."""
    parts = ["# Settings\n", NOTE, "YAML keys and `key=value` overrides. Unknown keys are refused.\n"]
    for model in settings():
        rows = [(f"`{f.name}`", _code(f.kind), _code(f.default), f.help) for f in model.fields]
        parts += [f"## `{model.name}`\n", f"{model.help} In `{model.module}`.\n"]
        if rows:
            parts.append(_table(("setting", "type", "default", "meaning"), rows))
    return "\n".join(parts)


def filled(text: str) -> str:
    """A page with its generated blocks made anew."""

    def block(match: re.Match[str]) -> str:
        return f"<!-- generated: {match[1]} -->\n\n{BLOCKS[match[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- generated: (\w+) -->\n.*?<!-- end -->", block, text, flags=re.DOTALL)


def _routes(tag: str) -> str:
    anything: Any = SimpleNamespace(model="", policy_version=0, vocabulary_size=1)  # nothing is called
    rows = []
    for path, operations in create_app(anything, anything, anything).openapi()["paths"].items():
        for method, operation in operations.items():
            if method != "servers" and operation["tags"] == [tag]:
                does = operation.get("description") or operation["summary"]
                scope = needed_scope(method.upper(), path)
                rows.append((f"`{method.upper()} {path}`", does.rstrip(".").replace("\n", " "), scope or "no key"))
    return _table(("route", "does", "scope"), rows)


def _bodies() -> str:
    parts = []
    for route, kind in BODIES:
        model = _settings(kind)
        rows = [(f"`{f.name}`", _code(f.kind), _code(f.default), f.help) for f in model.fields]
        parts += [f"### {route}\n", f"{model.help}\n", _table(("field", "type", "default", "meaning"), rows)]
    return "\n".join(parts)


def _metrics() -> str:
    anything: Any = SimpleNamespace(policy_version=0, cache_use=CacheUse())
    meters = Meters(anything, Gate(1, 1.0))
    labels = {m._name: ", ".join(m._labelnames) for m in vars(meters).values() if isinstance(m, MetricWrapperBase)}
    rows = []
    for metric in meters.registry.collect():
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        rows.append((f"`{name}`", metric.type, labels.get(metric.name, ""), metric.documentation))
    return _table(("metric", "type", "labels", "counts"), rows)


def _errors() -> str:
    rows = []
    for kind, (status, family, code) in sorted(STATUS.items(), key=lambda entry: entry[1]):
        problem = Problem(status=status, type=family, code=code, message="")
        meaning = " ".join((kind.__doc__ or "").split()).rstrip(".")
        rows.append((str(status), f"`{code}`", f"`{family}`", f"`{anthropic_type(problem)}`", meaning))
    return _table(("status", "code", "OpenAI's type", "Anthropic's type", "means"), rows)


def _presets() -> str:
    return "\n".join(_preset(name, load_preset(name)) for name in preset_names())


def _preset(name: str, preset: Preset) -> str:
    sections = {"algorithm": preset.algorithm, "learner": preset.learner, "rollout": preset.rollout.model_dump()}
    rows = [(f"`{section}`", ", ".join(_flat(values))) for section, values in sections.items()]
    remarks = [f"- Differs: {text}" for text in preset.differs] + [f"- {text}" for text in preset.notes]
    source = preset.source
    parts = [
        f"### `{name}`\n",
        f"{source.paper}; {source.version}. Read: {source.read}\n",
        _table(("section", "published, and the preset's"), [row for row in rows if row[1]]),
    ]
    return "\n".join([*parts, *remarks, ""] if remarks else parts)


def _flat(section: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        elif value not in (None, ()):
            text = " or ".join(value) if isinstance(value, tuple) else str(value).lower()
            yield f"`{above}{key}` {text}"


BODIES: tuple[tuple[str, type[BaseModel]], ...] = (
    ("`POST /v1/groups`", GroupWire),
    ("`POST /v1/trajectories`", TrajectoryWire),
    ("`POST /v1/steps`", StepWire),
    ("`sampling` of a step", SamplingWire),
    ("`POST /v1/rewards`", RewardWire),
    ("`POST /v1/trajectories/{trajectory_id}/end`", EndWire),
    ("`POST /v1/feedback`", FeedbackWire),
    ("`POST /v1/events`", EventWire),
    ("`POST /v1/sessions`", SessionWire),
)
"""What programs send."""

BLOCKS: Mapping[str, Callable[[], str]] = {
    "agent_routes": lambda: _routes("call models"),
    "record_routes": lambda: _routes("record and read"),
    "feed_routes": lambda: _routes("feed"),
    "operation_routes": lambda: _routes("operations"),
    "bodies": _bodies,
    "metrics": _metrics,
    "errors": _errors,
    "presets": _presets,
}


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def pages() -> dict[Path, str]:
    """What each page of the reference should hold."""
    made = {REFERENCE / "settings.md": settings_page(), REFERENCE / "cli.md": cli_page()}
    written = (path for path in [*sorted(REFERENCE.glob("*.md")), PAPERS] if path not in made)
    return made | {path: filled(path.read_text(encoding="utf-8")) for path in written}


def main() -> None:
    """Write the pages."""
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
