"""Mathematics with a Python tool: the agent may compute, reads what its program printed, and answers.

Two tools with one text each, so that a model with no tool-calling habit can play it line by line. Programs run in a
sandbox (`stepwell.environments.sandbox`). The built-in problems are our own and need no network; the data sets of
`math_problems` are read from the hub or from files. The last step earns the reward part `answer`, 1 or 0; a part
`unchecked` beside it says that the answer could not be compared, and so counts as wrong.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator

from stepwell.environments.arithmetic import word_problem
from stepwell.environments.math_answers import Judge, Mathematics, Numbers
from stepwell.environments.math_problems import SOURCES, Problem, Splits, problems_from_file, problems_from_hub
from stepwell.environments.sandbox import AnySandbox, MontyConfig
from stepwell.environments.sandbox.base import Sandbox
from stepwell.environments.toolcalls import text_argument, text_tool
from stepwell.errors import InvalidRequest, MissingDependency, NotFound
from stepwell.rendering.messages import Message, Tool, ToolCall
from stepwell.rollout.env import Environment, Outcome, TaskSet, TaskSetConfig

_TASKS: Final = 100_000
"""Problems of each split that are drawn from their ids."""
_MOST_CALLS: Final = 8
"""Of one message; each may take seconds."""
_PARAMETER: Final = {"python": "code", "answer": "text"}
_ANSWER: Final = text_tool("answer", "text", "Give the final answer and finish.")
_INSTRUCTIONS: Final = (
    "Solve the problem. The tool `python` runs a program: only what it prints comes back. Give the final answer, just "
    "the number or formula, with the tool `answer`."
)


class MathPythonConfig(TaskSetConfig):
    """Settings of mathematics with a Python tool."""

    dataset: Literal["arithmetic", "gsm8k", "math500", "aime24", "aime25", "amc23", "olympiad"] = "arithmetic"
    """`arithmetic`: built-in word problems, as many as one likes; the others are public sets, see `path`."""
    path: Path | None = None
    """File (JSON list or JSON lines) in the form of `dataset`, or a folder with `train.jsonl` and `test.jsonl`. Null
    asks the Hugging Face hub."""
    revision: str | None = None
    """Commit of the set on the hub; null: the newest."""
    sandbox: AnySandbox = MontyConfig()
    """Where programs run: `{use: monty}` or `{use: bubblewrap}`, each with limits."""
    max_turns: int = Field(default=6, ge=1)
    """Assistant messages after which the episode is truncated."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.dataset == "arithmetic" and (self.path is not None or self.revision is not None):
            raise ValueError("`path` and `revision` are for the other data sets, not for `dataset: arithmetic`")
        if self.path is not None and self.revision is not None:
            raise ValueError("`revision` is of the hub, so it does not go with `path`")
        return self

    def build(self) -> TaskSet:
        """The task set with these settings; see `MathPython` for what it may raise."""
        return MathPython(self)


class Problems:
    """The built-in word problems, and how their answers are judged."""

    def __init__(self) -> None:
        self.judge: Judge = Numbers()

    def ids(self, split: str) -> Sequence[str]:
        """Ids of a split."""
        return [f"{split}-{number}" for number in range(_TASKS)]

    def find(self, task_id: str) -> Problem | None:
        """The problem with that id."""
        split, _, number = task_id.partition("-")
        if split not in ("train", "test") or not (number.isascii() and number.isdecimal()):
            return None
        drawn = word_problem(task_id)
        return Problem(task_id, drawn.question, (str(drawn.answer),), drawn.kind)


class ReadProblems(Problems):
    """The problems of a set that was read."""

    def __init__(self, splits: Splits) -> None:
        try:
            import math_verify  # noqa: F401, PLC0415  # optional: answers of other sets are more than numbers
        except ImportError as error:
            raise MissingDependency("answers of this set are compared by: pip install 'stepwell[math]'") from error
        self.judge = Mathematics()
        self._splits = splits
        self._by_id: Mapping[str, Problem] = {one.id: one for problems in splits.values() for one in problems}

    def ids(self, split: str) -> Sequence[str]:
        """Ids of a split, in the order of the data."""
        return [problem.id for problem in self._splits[split]]

    def find(self, task_id: str) -> Problem | None:
        """The problem with that id."""
        return self._by_id.get(task_id)


@dataclass(frozen=True, slots=True)
class _Room:
    """What all environments of a task set share."""

    config: MathPythonConfig
    problems: Problems
    sandbox: Sandbox
    tools: tuple[Tool, ...]


class MathPython:
    """The task set: problems, one sandbox, one judge."""

    name: Final = "math_python"

    def __init__(self, config: MathPythonConfig) -> None:
        """Read the data and try the sandbox out.

        Raises:
            MissingDependency: the data, the sandbox or Math-Verify cannot be had.
            InvalidRecord: a row of the data is broken.
            ConfigError: the sandbox cannot be on this machine.
        """
        sandbox = config.sandbox.build()
        python = text_tool("python", "code", f"Run a program and see what it prints. {sandbox.about}")
        self._room = _Room(config, _problems(config), sandbox, (python, _ANSWER))

    def tasks(self, split: str) -> Sequence[str]:
        """Ids of `train` or `test`. A set that is for tests only has nothing in `train`.

        Raises:
            InvalidRequest: there is no such split.
        """
        if split not in ("train", "test"):
            raise InvalidRequest(f"no split {split!r}; use train or test")
        return self._room.problems.ids(split)

    def task_type(self, task_id: str) -> str:
        """The subject or kind of a problem."""
        problem = self._room.problems.find(task_id)
        return problem.kind if problem is not None and problem.kind else self._room.config.dataset

    def make(self) -> Environment:
        """A fresh episode."""
        return MathPythonEnvironment(self._room)


@dataclass(frozen=True, slots=True)
class _State:
    """Everything that an episode is: so it can be taken at any time, and put into another instance."""

    problem: Problem
    seed: int
    turns: int = 0
    interpreter: bytes = b""
    """What programs left in the sandbox."""


class MathPythonEnvironment:
    """One episode of mathematics with a Python tool."""

    def __init__(self, room: _Room) -> None:
        """Made by `MathPython.make`."""
        self._room = room
        self._state: _State | None = None

    @property
    def tools(self) -> tuple[Tool, ...]:
        """`python(code)` and `answer(text)`."""
        return self._room.tools

    def reset(self, task_id: str, *, seed: int = 0) -> tuple[Message, ...]:
        """Ask the problem `task_id`. `seed` is that of programs which draw random numbers.

        Raises:
            NotFound: there is no such problem.
        """
        problem = self._room.problems.find(task_id)
        if problem is None:
            raise NotFound(f"there is no problem {task_id!r} in {self._room.config.dataset}")
        self._state = _State(problem, seed)
        return (Message(role="system", content=_INSTRUCTIONS), Message(role="user", content=problem.question))

    async def step(self, action: Message) -> Outcome:
        """Run the programs of the message in order, up to an answer. Without a tool call, the message is the answer.

        Raises:
            InvalidRequest: no episode is running.
            EnvironmentFailed: the sandbox failed.
        """
        if self._state is None:
            raise InvalidRequest("no episode is running: call reset first")
        self._state = replace(self._state, turns=self._state.turns + 1)
        if not action.tool_calls:
            return await self._answered(action.content)
        results, invalid = [], 0
        for number, call in enumerate(action.tool_calls):
            text = text_argument(call, _PARAMETER)
            if text is not None and call.name == "answer":
                return replace(await self._answered(text), invalid_calls=invalid)
            refused = text is None or number >= _MOST_CALLS
            invalid += refused
            content = _mistake(call, number) if refused or text is None else await self._computed(text)
            results.append(Message(role="tool", content=content, tool_call_id=call.id))
        if self._state.turns >= self._room.config.max_turns:
            self._state = None
            return Outcome(truncated=True, reward_parts=(("answer", 0.0),), invalid_calls=invalid)
        return Outcome(messages=tuple(results), invalid_calls=invalid)

    def snapshot(self) -> object:
        """See `Forkable`."""
        return self._state

    def restore(self, snapshot: Any) -> None:
        """See `Forkable`."""
        self._state = snapshot

    async def _computed(self, program: str) -> str:
        assert self._state is not None
        ran = await self._room.sandbox.run(program, self._state.interpreter, seed=self._state.seed)
        self._state = replace(self._state, interpreter=ran.state)
        return ran.text

    async def _answered(self, text: str) -> Outcome:
        assert self._state is not None
        verdict = await self._room.problems.judge.judge(text, self._state.problem.answers)
        self._state = None
        parts = (("answer", float(verdict.right)), *((("unchecked", 0.0),) if verdict.unchecked else ()))
        return Outcome(terminated=True, reward_parts=parts)


def _problems(config: MathPythonConfig) -> Problems:
    if config.dataset == "arithmetic":
        return Problems()
    source = SOURCES[config.dataset]
    if config.path is not None:
        return ReadProblems(problems_from_file(source, config.path))
    return ReadProblems(problems_from_hub(source, config.revision))


def _mistake(call: ToolCall, number: int) -> str:
    if call.name not in _PARAMETER:
        return f"Error: there is no tool {call.name[:40]!r}; use python or answer."
    if number >= _MOST_CALLS:
        return f"Error: at most {_MOST_CALLS} calls in one message are answered."
    return f"Error: {call.name} takes one text called {_PARAMETER[call.name]}."
