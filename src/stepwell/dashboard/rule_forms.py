"""Forms for settings, made from the fields of their models: a new rule or condition needs no code here."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import tzinfo
from functools import partial
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from nicegui import ui
from nicegui.events import GenericEventArguments
from pydantic.fields import FieldInfo

from stepwell.config import Config
from stepwell.dashboard.moments import TIMES, moment, written

_CONSTANT: Final = "use"
"""Names a rule; chosen when the rule is added."""

Value = Any
"""Of a field, as its model takes it; or None, if nothing is given."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a field holds."""

    base: Any
    many: bool = False
    choices: tuple[str, ...] = ()
    """All that it may be; empty: anything."""


def kind_of(annotation: Any) -> Kind:
    """What a field of this type holds."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return kind_of(inner[0])
    if origin in (Union, UnionType):
        return kind_of(next(one for one in inner if one is not type(None)))
    if origin is tuple:
        return replace(kind_of(inner[0]), many=True)
    if origin is Literal:
        return Kind(str, choices=inner)
    return Kind(annotation)


class Form:
    """Inputs for fields of one model, drawn in the current slot."""

    def __init__(
        self,
        model: type[Config],
        values: Mapping[str, Value],
        changed: Callable[[], None],
        zone: tzinfo,
        only: Iterable[str] | None = None,
    ) -> None:
        """`values` are those to begin with; `only` these fields, in this order, if any are given."""
        names = tuple(model.model_fields if only is None else only)
        self._fields = {name: model.model_fields[name] for name in names if name != _CONSTANT}
        self._zone = zone
        self._inputs: dict[str, Any] = {}
        for name, field in self._fields.items():
            given = values.get(name, None if field.is_required() else field.default)
            self._inputs[name] = self._input(name, field, given, changed)

    @property
    def values(self) -> dict[str, Value]:
        """What is given, by field; what is left empty is as by default, and not in it."""
        found = {name: self._read(name) for name in self._fields}
        return {name: value for name, value in found.items() if value is not None}

    def show_mistakes(self, mistakes: Mapping[str, str]) -> None:
        """Say beside each field what is wrong with it; nothing, where it is right."""
        for name, element in self._inputs.items():
            if hasattr(element, "error"):
                element.error = mistakes.get(name)

    def _input(self, name: str, field: FieldInfo, value: Value, changed: Callable[[], None]) -> Any:
        kind, label = kind_of(field.annotation), spoken(name)
        if kind.base is bool:
            element: Any = ui.switch(label, value=bool(value), on_change=changed)
        elif kind.choices:
            options = {choice: choice for choice in kind.choices}
            chosen = list(value or ()) if kind.many else value
            element = ui.select(options, label=label, value=chosen, multiple=kind.many, on_change=changed)
            element.props("use-chips" if kind.many else "")
        elif kind.many:
            element = ui.input_chips(label, value=list(value or ()), new_value_mode="add-unique", on_change=changed)
            element.on("blur", partial(_add, element), js_handler="(event) => emit(event.target.value)")
        elif name in TIMES:
            element = ui.input(label, value=written(value, self._zone), on_change=changed)
            element.props("type=datetime-local stack-label")
        elif kind.base in (int, float):
            element = ui.number(label, value=value, on_change=changed).props("step=any clearable")
        else:
            element = ui.input(label, value=value or "", on_change=changed)
        return _dressed(element, kind, field)

    def _read(self, name: str) -> Value:
        field, value = self._fields[name], self._inputs[name].value
        if name in TIMES:
            return moment(value or "", self._zone)
        if kind_of(field.annotation).many:
            return tuple(value)
        return None if value == "" else value


def _add(chips: ui.input_chips, event: GenericEventArguments) -> None:
    """What was typed counts, also for those who go on to the next field without Enter."""
    text = str(event.args or "").strip()
    if text and text not in chips.value:
        chips.set_value([*chips.value, text])


def _dressed(element: Any, kind: Kind, field: FieldInfo) -> Any:
    """With what its docstring says, shown while it has the focus."""
    about = (field.description or "").replace("`", "").replace("\n", " ")
    if kind.base is bool:
        element.tooltip(about)
        return element.classes("w-full")
    enters = " Enter adds one." if kind.many and not kind.choices else ""
    element.props("outlined dense hide-hint").props["hint"] = about + enters
    return element.without_auto_validation().classes("w-full")  # only the whole model knows what is wrong


def spoken(name: str) -> str:
    """The name of a field or rule, for people."""
    return name.replace("_", " ").capitalize()
