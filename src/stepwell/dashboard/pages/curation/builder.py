"""The form of a selection: its conditions, and its rules in their order."""

from collections.abc import Callable, Mapping
from datetime import tzinfo
from typing import Any, Final, get_args

from nicegui import ui
from pydantic import ValidationError

from stepwell.curation.rules import AnyRule
from stepwell.curation.rules.base import Rule
from stepwell.curation.selection import Selection
from stepwell.dashboard.rule_forms import Form, spoken
from stepwell.dashboard.widgets import heading

RULES: Final[dict[str, type[Rule]]] = {
    rule.model_fields["use"].default: rule for rule in get_args(get_args(AnyRule)[0])
}
"""All rules, by what they are called."""

_PARTS: Final = {
    "Where from": ("channel", "task_ids", "group_ids", "trajectory_ids", "agents", "sources"),
    "What became of it": ("statuses", "verdicts", "tags", "without_tags", "min_reward", "max_reward"),
    "Age and length": (
        *("min_policy_version", "max_policy_version", "min_steps", "max_steps", "created_after", "created_before"),
    ),
}
_REST: Final = tuple(
    name for name in Selection.model_fields if name != "rules" and not any(name in part for part in _PARTS.values())
)


class Builder:
    """Inputs for a selection, drawn in the current slot; says what they hold whenever they have changed."""

    def __init__(self, selection: Selection, zone: tzinfo, chosen: Callable[[Selection | None], None]) -> None:
        """Begin with `selection`; `chosen` hears of each other one; None: the form has a mistake."""
        self._zone = zone
        self._chosen = chosen
        self._box = ui.column().classes("w-full gap-4")
        self.show(selection)

    def show(self, selection: Selection) -> None:
        """Draw the form anew with this selection in it."""
        self._box.clear()
        self._conditions: list[Form] = []
        self._rules: list[tuple[str, Form]] = []
        with self._box:
            with ui.card().classes("w-full gap-2"):
                heading("Conditions")
                values = selection.model_dump()
                for title, names in {**_PARTS, "Words": _REST}.items():
                    self._part(title, names, values)
            with ui.card().classes("w-full gap-2"):
                heading("Rules: what is left out because of its quality, in this order")
                self._list = ui.column().classes("w-full gap-2")
                self._adding()
        self._draw_rules([(rule.use, rule.model_dump()) for rule in selection.rules])

    def _part(self, title: str, names: tuple[str, ...], values: Mapping[str, Any]) -> None:
        given = any(values[name] != Selection.model_fields[name].default for name in names)
        first = title == next(iter(_PARTS))
        with ui.expansion(title, value=given or first).classes("w-full").props("dense"), _grid():
            self._conditions.append(Form(Selection, values, self._check, self._zone, names))

    def _adding(self) -> None:
        with ui.dropdown_button("Add a rule", icon="add", auto_close=True).props("outline no-caps"):
            for use, rule in RULES.items():
                with ui.item(on_click=lambda use=use: self._add(use)), ui.item_section():
                    ui.item_label(spoken(use))
                    ui.item_label(_about(rule)).props("caption")

    def _draw_rules(self, rules: list[tuple[str, Mapping[str, Any]]]) -> None:
        self._list.clear()
        self._rules = []
        with self._list:
            for number, (use, values) in enumerate(rules):
                self._rules.append((use, self._rule(number, use, values)))
            if not rules:
                ui.label("No rule: all that matches and is ready is handed over.").classes("text-sm sw-quiet")

    def _rule(self, number: int, use: str, values: Mapping[str, Any]) -> Form:
        with ui.card().classes("w-full gap-1 p-3"):
            with ui.row().classes("w-full items-center no-wrap"):
                ui.label(spoken(use)).classes("font-medium grow")
                for icon, name, act in (
                    ("arrow_upward", "earlier", lambda: self._swap(number)),
                    ("delete_outline", "away", lambda: self._drop(number)),
                ):
                    button = ui.button(icon=icon, on_click=act).props("flat round dense")
                    button.props(f'aria-label="{spoken(use)}: {name}"').set_enabled(name == "away" or number > 0)
            ui.label(_about(RULES[use])).classes("text-sm sw-quiet")
            with _grid():
                return Form(RULES[use], values, self._check, self._zone)

    def _given(self) -> list[tuple[str, Mapping[str, Any]]]:
        return [(use, form.values) for use, form in self._rules]

    def _add(self, use: str) -> None:
        self._draw_rules([*self._given(), (use, {})])
        self._check()

    def _drop(self, number: int) -> None:
        self._draw_rules([one for place, one in enumerate(self._given()) if place != number])
        self._check()

    def _swap(self, number: int) -> None:
        rules = self._given()
        rules[number - 1], rules[number] = rules[number], rules[number - 1]
        self._draw_rules(rules)
        self._check()

    def _check(self) -> None:
        """Make a selection of what the fields hold, or say beside them what is wrong."""
        values: dict[str, Any] = {name: value for form in self._conditions for name, value in form.values.items()}
        values["rules"] = [{"use": use, **form.values} for use, form in self._rules]
        try:
            selection = Selection.model_validate(values)
        except ValidationError as error:
            self._show_mistakes(error)
            self._chosen(None)
            return
        self._show_mistakes(None)
        self._chosen(selection)

    def _show_mistakes(self, error: ValidationError | None) -> None:
        """Of a condition the place is its name; of a rule: `rules`, its number, its name, and that of its field."""
        conditions: dict[str, str] = {}
        rules: list[dict[str, str]] = [{} for _ in self._rules]
        for problem in error.errors() if error else ():
            place = problem["loc"]
            own = rules[int(place[1])] if place[0] == "rules" else conditions
            own[str(place[3] if place[0] == "rules" else place[0])] = problem["msg"].removeprefix("Value error, ")
        for form in self._conditions:
            form.show_mistakes(conditions)
        for (_, form), mistakes in zip(self._rules, rules, strict=True):
            form.show_mistakes(mistakes)


def _grid() -> ui.element:
    return ui.element("div").classes("w-full grid grid-cols-1 sm:grid-cols-2 gap-x-3 gap-y-2")


def _about(rule: type[Rule]) -> str:
    """The first paragraph of its docstring."""
    return (rule.__doc__ or "").partition("\n\n")[0].replace("`", "").strip()
