"""The programs that an agent works on in the Berkeley Function Calling Leaderboard's conversations.

They are those of the package `bfcl-eval` (Apache-2.0), unchanged: a file system, a stock broker, a car and so on, as
Python objects in memory, whose methods are the tools. Nothing of the package is part of Stepwell.
"""

import ast
import copy
import importlib
import importlib.util
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stepwell.environments.rows import Row, read_rows
from stepwell.environments.tool_arguments import Misused, checked_arguments
from stepwell.errors import MissingDependency
from stepwell.rendering.messages import Tool, ToolCall

_INSTALL: Final = "pip install mpmath; pip install --no-deps bfcl-eval"
_CHECKER: Final = "bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker"
_SETTINGS: Final = "bfcl_eval.constants.executable_backend_config"
_ROWS: Final = "BFCL_v4_multi_turn_base.json"
_BROKEN: Final = frozenset({"multi_turn_base_173"})
"""Conversations whose reference solution makes a call that its own tool does not take."""
_KINDS: Final = {"dict": "object", "float": "number", "tuple": "array", "any": None}
"""Its names of types to JSON Schema's."""
_LARGEST: Final = 1e15
_LARGEST_OF: Final[Mapping[str, float]] = {"exponent": 1_000, "precision": 1_000}
"""Numbers beyond which a tool would compute for hours."""
_ALONE: Final = threading.Lock()
"""Held while a tool runs: the calculator sets the precision of the whole process."""

Instances = dict[str, Any]
"""The programs by the name of their class."""


@dataclass(frozen=True, slots=True)
class GoldCall:
    """A call of the reference solution."""

    name: str
    positional: tuple[Any, ...]
    named: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Conversation:
    """A task: what the user says turn by turn, and the reference solution of each turn."""

    id: str
    requests: tuple[str, ...]
    gold: tuple[tuple[GoldCall, ...], ...]
    classes: tuple[str, ...]
    scenario: Mapping[str, Any]
    """The state that each program begins with."""
    excluded: frozenset[str]
    """Tools that are not offered."""


class Programs:
    """Reads the package: its conversations, its tools, its checks."""

    def __init__(self) -> None:
        """Import what is light of the package.

        Raises:
            MissingDependency: it, or mpmath, is not installed.
        """
        try:
            self._folder = Path(_required("bfcl_eval")) / "data"
            settings = importlib.import_module(_SETTINGS)
            self._checker = importlib.import_module(_CHECKER)
            self._classes = settings.CLASS_FILE_PATH_MAPPING
            self._documents = settings.MULTI_TURN_FUNC_DOC_FILE_MAPPING
            importlib.import_module(self._classes["MathAPI"])
        except ImportError as error:
            raise MissingDependency(f"BFCL needs: {_INSTALL} ({error})") from error
        self._stateless = frozenset(settings.STATELESS_CLASSES)
        self._tools: dict[str, Mapping[str, Tool]] = {}

    def conversations(self) -> Iterator[Conversation]:
        """The base tasks, in their order: 200, less one that no correct call solves."""
        answers = read_rows(self._folder / "possible_answer" / _ROWS)
        gold = {row.text("id"): row.fields["ground_truth"] for row in answers}
        for row in read_rows(self._folder / _ROWS):
            if row.text("id") not in _BROKEN:
                yield _conversation(row, gold[row.text("id")])

    def tools(self, conversation: Conversation) -> Mapping[str, Tool]:
        """What the agent is offered, by name."""
        offered = {name: tool for kind in conversation.classes for name, tool in self._of_class(kind).items()}
        return {name: tool for name, tool in offered.items() if name not in conversation.excluded}

    def begin(self, conversation: Conversation) -> Instances:
        """The programs as the conversation begins."""
        made: Instances = {}
        for name in conversation.classes:
            made[name] = getattr(importlib.import_module(self._classes[name]), name)()
            if name not in self._stateless:
                made[name]._load_scenario(copy.deepcopy(conversation.scenario.get(name, {})), long_context=False)
        return made

    def same_state(self, instances: Instances, gold: Instances) -> bool:
        """The leaderboard's check that all public attributes are equal."""
        try:
            return bool(self._checker.state_checker(instances, gold)["valid"])
        except RecursionError:  # a folder that was moved into itself: no solution does that
            return False

    def has_results(self, results: list[str], gold: list[str]) -> bool:
        """The leaderboard's check that what the solution's calls said was said to the agent too, by now."""
        return bool(self._checker.response_checker(results, gold, 0)["valid"])

    def _of_class(self, kind: str) -> Mapping[str, Tool]:
        if kind not in self._tools:
            rows = read_rows(self._folder / "multi_turn_func_doc" / self._documents[kind])
            self._tools[kind] = {row.text("name"): _tool(row) for row in rows}
        return self._tools[kind]


def run_call(instances: Instances, tools: Mapping[str, Tool], call: ToolCall) -> str:
    """What the tool says to the policy's call.

    Raises:
        Misused: there is no such tool, or it does not take such arguments.
    """
    arguments = checked_arguments(call, tools)
    for name, value in arguments.items():
        _bounded(name, value)
    return _run(instances, GoldCall(call.name, (), arguments))


def run_gold(instances: Instances, calls: tuple[GoldCall, ...]) -> list[str]:
    """What the tools say to a turn of the reference solution."""
    return [_run(instances, call) for call in calls]


def _run(instances: Instances, call: GoldCall) -> str:
    """A result in the leaderboard's own words, errors too, since these are compared."""
    owner = next((one for one in instances.values() if hasattr(one, call.name)), None)
    try:
        with _ALONE:
            # Copies: what a program keeps of a call must not be shared with another episode.
            result = getattr(owner, call.name)(*copy.deepcopy(call.positional), **copy.deepcopy(dict(call.named)))
        return result if isinstance(result, str) else _text(result)
    except Exception as error:  # whatever these programs raise is their answer
        return f"Error during execution: {error}"


def _text(result: object) -> str:
    if not isinstance(result, dict):
        return str(result)
    try:
        return json.dumps(result)
    except (TypeError, ValueError):
        return str(result)


def _bounded(name: str, value: object) -> None:
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, int | float) and abs(item) > _LARGEST_OF.get(name, _LARGEST):
            raise Misused(f"{name} must not be beyond {_LARGEST_OF.get(name, _LARGEST):g}.")


def _conversation(row: Row, gold: list[list[str]]) -> Conversation:
    fields = row.fields
    return Conversation(
        id=row.text("id"),
        requests=tuple("\n".join(message["content"] for message in turn) for turn in fields["question"]),
        gold=tuple(tuple(_gold_call(text) for text in turn) for turn in gold),
        classes=tuple(fields["involved_classes"]),
        scenario=fields["initial_config"],
        excluded=frozenset(fields.get("excluded_function", ())),
    )


def _gold_call(text: str) -> GoldCall:
    """A call that is written as Python; of literals only, so that nothing has to be evaluated."""
    call: Any = ast.parse(text, mode="eval").body
    named = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    return GoldCall(call.func.id, tuple(ast.literal_eval(argument) for argument in call.args), named)


def _tool(row: Row) -> Tool:
    schema = _schema(row.fields["parameters"])
    return Tool(name=row.text("name"), description=row.text("description"), parameters=schema)


def _schema(told: Any) -> Any:
    """JSON Schema of a description of parameters, whose names of types are Python's."""
    if isinstance(told, list):
        return [_schema(item) for item in told]
    if not isinstance(told, dict):
        return told
    schema = {key: _schema(value) for key, value in told.items()}
    kind = told.get("type")
    if isinstance(kind, str):
        schema["type"] = _KINDS.get(kind, kind)
        if schema["type"] is None:
            del schema["type"]
    return schema


def _required(package: str) -> str:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ImportError(f"no package {package}")
    return str(Path(spec.origin).parent)
