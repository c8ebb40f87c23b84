"""Config base: one frozen model per component, beside it; unknown keys are refused with the nearest name."""

import difflib
import importlib
import importlib.util
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stepwell.errors import ConfigError

C = TypeVar("C", bound="Config")
Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
"""A whole number, not negative, that every database can hold."""


class Config(BaseModel):
    """Base of every component's settings. Defaults are the vetted setting; each field has its unit in a docstring.

    No number is NaN or infinite: neither survives a JSON round trip, and a comparison with NaN holds for nothing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


def load_config(
    kind: type[C],
    source: Path | Mapping[str, Any] | None,
    overrides: Sequence[str] = (),
    *,
    only: Collection[str] | None = None,
) -> C:
    """Read `source`, apply dotted `overrides` such as `trainer.lr=3e-4`, and check.

    The source is a YAML file, what would be in one, or None for all defaults. With `only`, other keys of it than these
    are somebody else's and not looked at.

    Raises:
        ConfigError: the file is missing or not YAML, an override has no `=`, or a key or value is wrong; the message
            names the key and, for an unknown one, the nearest that exists.
    """
    values = _read_yaml(source) if isinstance(source, Path) else deepcopy(dict(source or {}))
    if only is not None:
        values = {key: value for key, value in values.items() if key in only}
    for override in overrides:
        _apply_override(values, override)
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(_explained(kind, error))) from error


def component_config(table: Mapping[str, type[C]], base: type[C], section: Mapping[str, Any]) -> C:
    """The settings of one component that a recipe chooses: `use` names it, the other keys are its settings.

    `use` is a name in `table`, or, for one that Stepwell does not ship, `package.module:Class` or `path/file.py:Class`,
    where Class is a subclass of `base`.

    Raises:
        ConfigError: no `use`, an unknown name, a class that is not a `base`, or wrong settings.
    """
    settings = dict(section)
    use = settings.pop("use", None)
    if not isinstance(use, str):
        raise ConfigError(f"`use` must name one of {', '.join(table)}, or a class as file.py:Class or module:Class")
    kind = table.get(use) or _imported(use, base, table)
    try:
        return kind.model_validate(settings)
    except ValidationError as error:
        raise ConfigError("\n".join(f"{use}: {mistake}" for mistake in _explained(kind, error))) from error


def imported(reference: str) -> Any:
    """What `package.module:name` or `path/file.py:name` names.

    Raises:
        ConfigError: there is no such module or name.
    """
    place, colon, name = reference.rpartition(":")
    found = getattr(_module(place), name, None) if colon else None
    if found is None:
        raise ConfigError(f"{reference!r} names nothing; write package.module:name or path/file.py:name")
    return found


def _imported(use: str, base: type[C], table: Mapping[str, type[C]]) -> type[C]:
    place, colon, name = use.rpartition(":")
    if not colon:
        nearest = difflib.get_close_matches(use, table, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(table)}; or file.py:Class"
        raise ConfigError(f"there is no {use!r}; {hint}")
    kind = getattr(_module(place), name, None)
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise ConfigError(f"{use}: {name} is not a subclass of {base.__module__}.{base.__name__}")
    return kind


def _module(place: str) -> ModuleType:
    try:
        if not place.endswith(".py"):
            return importlib.import_module(place)
        spec = importlib.util.spec_from_file_location(Path(place).stem, place)
        if spec is None or spec.loader is None:
            raise ConfigError(f"{place} cannot be loaded as Python")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # somebody's code runs here; the setting that names it is at fault
        raise ConfigError(f"cannot import {place}: {type(error).__name__}: {error}") from error
    return module


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a mapping of settings, got a {type(values).__name__}")
    return values


def _apply_override(values: dict[str, Any], override: str) -> None:
    dotted, equals, text = override.partition("=")
    if not equals or not dotted:
        raise ConfigError(f"override {override!r} must look like section.key=value")
    *parents, last = dotted.split(".")
    for parent in parents:
        inner = values.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"override {override!r}: {parent} is a value, not a section")
        values = inner
    try:
        value = yaml.safe_load(text) if text else ""
    except yaml.YAMLError as error:
        raise ConfigError(f"override {override!r}: {text!r} is not a YAML value") from error
    if last == "use" and values.get("use") != value:
        values.clear()  # the other keys are settings of the component that was chosen before
    values[last] = value


def _explained(kind: type[BaseModel], error: ValidationError) -> list[str]:
    """A line for each mistake."""
    problems = error.errors()
    places = [problem["loc"] for problem in problems]
    return [_explain(kind, problem) for problem in problems if not _follows(problem, places)]


def _follows(problem: Any, places: Sequence[tuple[int | str, ...]]) -> bool:
    """Whether it only follows from another mistake: without its wrong items, a list may be too short."""
    place = problem["loc"]
    return problem["type"] == "too_short" and any(
        other[: len(place)] == place and len(other) > len(place) for other in places
    )


def _explain(kind: type[BaseModel], problem: Any) -> str:
    location = ".".join(str(part) for part in problem["loc"])
    if problem["type"] != "extra_forbidden":
        # A whole section is no value that somebody mistyped, and there may be a key in it.
        got = "" if isinstance(problem["input"], Mapping) else f" (got {problem['input']!r})"
        return ": ".join(filter(None, [location, problem["msg"].removeprefix("Value error, ")])) + got
    known = _fields_at(kind, problem["loc"][:-1])
    nearest = difflib.get_close_matches(str(problem["loc"][-1]), known, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"known keys: {', '.join(sorted(known))}"
    return f"{location}: unknown setting; {hint}"


def _fields_at(kind: type[BaseModel], location: Sequence[Any]) -> list[str]:
    for part in location:
        if isinstance(part, int):  # an item of the list before
            continue
        field = kind.model_fields.get(str(part))
        inner = (field.annotation, *get_args(field.annotation)) if field is not None else ()
        models = [one for one in inner if isinstance(one, type) and issubclass(one, BaseModel)]
        if not models:
            return []
        kind = models[0]
    return list(kind.model_fields)
