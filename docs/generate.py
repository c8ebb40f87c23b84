"""Writes docs/reference/settings.md and cli.md from the code: `make docs` runs it, tests/test_docs.py checks it."""

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

import stepwell
from stepwell.config import Config

REFERENCE = Path(__file__).parent / "reference"
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
            importlib.import_module(module.name)
    found = {kind for kind in _subclasses(Config) if kind.__module__.startswith("stepwell.")}
    return [_settings(kind) for kind in sorted(found, key=lambda kind: (kind.__module__, kind.__name__))]


def _subclasses(kind: type[Config]) -> Iterator[type[Config]]:
    for child in kind.__subclasses__():
        yield child
        yield from _subclasses(child)


def _settings(kind: type[Config]) -> Settings:
    fields = tuple(_setting(name, field) for name, field in kind.model_fields.items())
    return Settings(kind.__name__, kind.__module__, " ".join((kind.__doc__ or "").split()), fields)


def _setting(name: str, field: FieldInfo) -> Setting:
    value = field.get_default(call_default_factory=True)
    default = f"{type(value).__name__}()" if isinstance(value, Config) else repr(value)
    kind = field.annotation.__name__ if isinstance(field.annotation, type) else str(field.annotation)
    kind = kind.replace("typing.", "").replace("pathlib.", "")
    help_text = " ".join((field.description or "").split())
    return Setting(name, kind, "required" if field.is_required() else default, help_text)


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


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def main() -> None:
    """Write the pages."""
    for name, page in (("settings.md", settings_page), ("cli.md", cli_page)):
        (REFERENCE / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
