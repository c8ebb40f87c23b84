"""A request's JSON read field by field: null is a missing field, a wrong type is an error that names the place."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic_core import to_json

from stepwell.errors import InvalidRequest

_NAMES: Final = {
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
}
LARGEST: Final = 2**31 - 1
"""Largest integer that any parameter makes sense with."""


def invalid(place: str, why: str) -> InvalidRequest:
    """The error that says what is wrong at a place."""
    return InvalidRequest(f"{place}: {why}", param=place)


def wrong_type(place: str, wanted: str, value: object) -> InvalidRequest:
    """The error that says which type a place should have."""
    return invalid(place, f"must be {wanted}, not {_NAMES.get(type(value), 'null')}")


class Fields:
    """One JSON object of a request, at a known place in it. All methods raise InvalidRequest."""

    __slots__ = ("_place", "_values")

    def __init__(self, value: object, place: str = "") -> None:
        """Check that `value` is an object; `place` is empty for the whole body."""
        if not isinstance(value, dict):
            raise wrong_type(place or "body", "an object", value)
        self._values: dict[str, Any] = value
        self._place = place

    def place(self, name: str) -> str:
        """Where the field is in the body, such as `messages.0.role`."""
        return f"{self._place}.{name}" if self._place else name

    def get(self, name: str) -> object:
        """The field as it came; None if it is missing."""
        return self._values.get(name)

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self._values.get(name) is not None

    def common(self, names: Mapping[str, object]) -> list[str]:
        """Which of `names` are here, in their order."""
        found = names.keys() & self._values.keys()
        return [name for name in names if name in found] if found else []

    def text(self, name: str) -> str | None:
        """A string."""
        value = self._values.get(name)
        if value is None or isinstance(value, str):
            return value
        raise wrong_type(self.place(name), "a string", value)

    def name(self, name: str) -> str:
        """A string that must be there and not be empty."""
        value = self.text(name)
        if not value:
            raise invalid(self.place(name), "is required")
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A boolean."""
        value = self._values.get(name)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        raise wrong_type(self.place(name), "a boolean", value)

    def number(self, name: str, low: float, high: float) -> float | None:
        """A number in low..high."""
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong_type(self.place(name), "a number", value)
        if not low <= value <= high:
            raise invalid(self.place(name), f"must be in {low}..{high}")
        return float(value)

    def integer(self, name: str, low: int, high: int = LARGEST) -> int | None:
        """A whole number in low..high."""
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong_type(self.place(name), "a whole number", value)
        if not low <= value <= high:
            raise invalid(self.place(name), f"must be in {low}..{high}")
        return value

    def items(self, name: str) -> list[object]:
        """A list; empty if it is missing."""
        value = self._values.get(name)
        if value is None:
            return []
        if isinstance(value, list):
            return value
        raise wrong_type(self.place(name), "a list", value)

    def mapping(self, name: str) -> dict[str, Any]:
        """An object that is handed on as it is; empty if it is missing."""
        value = self._values.get(name)
        if value is None:
            return {}
        if isinstance(value, dict):
            return value
        raise wrong_type(self.place(name), "an object", value)

    def child(self, name: str) -> "Fields | None":
        """An object."""
        value = self._values.get(name)
        return None if value is None else Fields(value, self.place(name))

    def children(self, name: str) -> "Iterator[Fields]":
        """The objects of a list."""
        for index, value in enumerate(self.items(name)):
            yield Fields(value, f"{self.place(name)}.{index}")


def compact_json(value: object) -> str:
    """JSON text without spaces, keys in the order that they came in."""
    return to_json(value).decode()
