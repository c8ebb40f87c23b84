"""Python functions become tools: schema, description, checked arguments."""

import json
from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from stepwell.environments.function_tools import function_tool
from stepwell.environments.tool_arguments import Misused
from stepwell.errors import ConfigError


class Unit(StrEnum):
    """Of length."""

    METRE = "m"
    INCH = "in"


def measure(what: str, unit: Unit = Unit.METRE, *, times: int = 1, model: list[float] | None = None) -> str:
    """Measure something.

    More about it.

    Args:
        what: The thing to measure,
            over two lines.
        times (int): How often.

    Returns:
        What was found.
    """
    return f"{what} {unit} {times} {model}"


def test_the_schema_comes_from_the_hints_and_the_docstring() -> None:
    tool = function_tool(measure).tool
    assert (tool.name, tool.description) == ("measure", "Measure something.\n\nMore about it.")
    assert tool.parameters["required"] == ["what"]
    assert tool.parameters["additionalProperties"] is False
    properties = tool.parameters["properties"]
    assert properties["what"] == {"type": "string", "description": "The thing to measure,"}
    assert properties["times"] == {"type": "integer", "description": "How often."}
    assert list(properties) == ["what", "unit", "times", "model"]
    json.dumps(tool.parameters)


def test_pydantics_own_descriptions_and_limits_are_kept() -> None:
    def pick(n: Annotated[int, Field(ge=1, description="Which.")], title: Literal["a", "b"]) -> None:
        """Pick."""

    properties = function_tool(pick).tool.parameters["properties"]
    assert properties["n"] == {"type": "integer", "minimum": 1, "description": "Which."}
    assert properties["title"]["enum"] == ["a", "b"]


def test_arguments_get_the_types_that_the_function_wants() -> None:
    found = function_tool(measure).arguments('{"what": "x", "unit": "in", "model": [1, 2.5]}')
    assert found == {"what": "x", "unit": Unit.INCH, "model": [1.0, 2.5]}
    assert measure(**found) == "x in 1 [1.0, 2.5]"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("{}", "what: Field required"),
        ('{"what": 7}', "what: Input should be a valid string"),
        ('{"what": "x", "times": "2"}', "times: Input should be a valid integer"),
        ('{"what": "x", "where": 1}', "where: Extra inputs are not permitted"),
        ('{"what": "x", "unit": "mile"}', "unit: Input should be 'm' or 'in'"),
        ("[1]", "arguments: Input should be an object"),
        ('{"what": ', "arguments: Invalid JSON"),
        ("[" * 20_000, "arguments: Invalid JSON"),
        ('{"what": "\ud800"}', None),
    ],
)
def test_wrong_arguments_are_told_in_a_sentence(arguments: str, said: str | None) -> None:
    tool = function_tool(measure)
    if said is None:
        assert tool.arguments(arguments) == {"what": "?"}
        return
    with pytest.raises(Misused, match="measure does not take that") as caught:
        tool.arguments(arguments)
    assert said in str(caught.value)


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_no_arguments_break_the_check(arguments: str) -> None:
    with pytest.raises(Misused) as caught:  # a text or a list is no object
        function_tool(measure).arguments(arguments)
    assert len(str(caught.value)) < 1000


def bare(x: int) -> None: ...


def unhinted(x) -> None:  # type: ignore[no-untyped-def]
    """Has no hint."""


def many(*items: int) -> None:
    """Takes any number."""


def lost(x: "Nowhere") -> None:  # type: ignore[name-defined]  # noqa: F821
    """Has a hint of something that is not there."""


def strange(x: object.__class__.__class__) -> None:
    """Wants a type."""


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (bare, "bare needs a docstring"),
        (unhinted, "unhinted needs a type hint for its parameter x"),
        (many, "a tool's parameters must each have a name"),
        (lost, "a type hint that cannot be found"),
        (strange, "whose type JSON has no values for"),
        (7, "needs a docstring"),
    ],
)
def test_a_function_that_can_be_no_tool_is_refused(function: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        function_tool(function)


@pytest.mark.parametrize(
    ("result", "shown"), [("text", "text"), (None, "done"), ({"ä": [1]}, '{"ä": [1]}'), ({1}, '"{1}"'), (2.5, "2.5")]
)
def test_results_are_shown_as_text_or_json(result: object, shown: str) -> None:
    assert function_tool(measure).shown(result) == shown
