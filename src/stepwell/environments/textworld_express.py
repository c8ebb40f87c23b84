"""TextWorldExpress: small text games, about cooking, tidying up, coins, maps, sums, and doing what one is told.

Wraps `textworld-express` (https://github.com/cognitiveailab/TextWorldExpress, Apache-2.0), whose games are a Java
archive inside a Python wheel; it needs Java 8 or newer, and no network. One Java machine serves all episodes of a task
set: each has a game of its own in it, and a step takes about a millisecond. A machine that died is replaced for the
episodes that come after.

Its kind `sorting` is left out: two games of the same seed in one machine move the same things about.

A game cannot be copied. It follows from its seed and the commands, so forks play those again, which is checked.
"""

import contextlib
import json
import logging
import threading
from collections.abc import Sequence
from typing import Any, Final, Literal

from pydantic import Field

from stepwell.environments.commands import Interface, Reaction, carried_out, how_to_act, listed, offered
from stepwell.errors import ConfigError, EnvironmentFailed, InvalidRequest, MissingDependency, NotFound
from stepwell.rendering.messages import Message, Tool
from stepwell.rollout.env import Outcome, TaskSetConfig

_FOLDS: Final = ("train", "dev", "test")
_INSTRUCTIONS: Final = (
    "You play a text game. {how} A command is a few words, such as `look around`, `inventory`, `move north`, "
    "`open fridge` or `take apple`; what you see tells which things there are."
)


class TextWorldExpressConfig(TaskSetConfig):
    """Settings of TextWorldExpress. Needs the extra `textworld-express`, and Java."""

    game: Literal["cookingworld", "twc", "coin", "mapreader", "arithmetic", "simonsays", "peckingorder"] = "coin"
    """What is played: find and cook, tidy up by common sense, find a coin, find a place on a map, compute, do what
    Simon says, read and obey."""
    parameters: str = ""
    """How large the games are, such as `numLocations=3,includeDoors=0`; empty for the package's own choice."""
    interface: Interface = "tool"
    """How the policy gives a command: `tool`, by `act(command)`; `text`, by writing it."""
    admissible: bool = False
    """Tell with each observation which commands are possible."""
    max_steps: int = Field(default=50, ge=1)
    """Commands after which an episode is truncated. The rollout's `max_turns` should not be less."""

    def build(self) -> "TextWorldExpress":
        """The task set with these settings; see `TextWorldExpress` for what it may raise."""
        return TextWorldExpress(self)


class TextWorldExpress:
    """The task set: 1,000 seeds of one kind of game in each of `train`, `dev` and `test`."""

    name: Final = "textworld_express"

    def __init__(self, config: TextWorldExpressConfig) -> None:
        """Start Java, and ask which seeds there are.

        Raises:
            MissingDependency: the package or Java is not there.
            ConfigError: the game does not take these parameters.
        """
        self._config = config
        self._machine = _Machine()
        game = self._machine.game(config)
        seeds = zip(_FOLDS, (game.getSeedsTrain(), game.getSeedsDev(), game.getSeedsTest()), strict=True)
        self._splits = {fold: tuple(f"{fold}-{seed}" for seed in of_fold) for fold, of_fold in seeds}
        self._known = {task for tasks in self._splits.values() for task in tasks}

    def tasks(self, split: str) -> Sequence[str]:
        """Ids of the games of `train`, `dev` or `test`, each with its seed.

        Raises:
            InvalidRequest: there is no such split.
        """
        if split not in self._splits:
            raise InvalidRequest(f"no split {split!r}; use {', '.join(_FOLDS)}")
        return self._splits[split]

    def make(self) -> "TextWorldExpressEnvironment":
        """A fresh environment in the shared Java machine."""
        return TextWorldExpressEnvironment(self._machine, self._config, self._known)

    def walkthrough(self, task_id: str) -> tuple[str, ...]:
        """Commands that win a game, by its own solver, which may say a few more than it takes."""
        environment = self.make()
        environment.reset(task_id)
        try:
            return environment.solution()
        finally:
            environment.close()


class TextWorldExpressEnvironment:
    """One episode: commands until the game is won or lost. The reward part `score` is what the score grew by."""

    def __init__(self, machine: "_Machine", config: TextWorldExpressConfig, known: set[str]) -> None:
        """Made by `TextWorldExpress.make`."""
        self._machine = machine
        self._config = config
        self._known = known
        self._game: Any = None
        self._task_id = ""
        self._steps = 0
        self._score = 0.0

    @property
    def tools(self) -> tuple[Tool, ...]:
        """`act(command)`, or none."""
        return offered(self._config.interface)

    def reset(self, task_id: str, *, seed: int = 0) -> tuple[Message, ...]:  # noqa: ARG002
        """Say what is to be done, and what one sees.

        Raises:
            NotFound: there is no such game.
            EnvironmentFailed: Java broke.
        """
        if task_id not in self._known:
            raise NotFound(f"there is no game {task_id!r}: they are called {'-N, '.join(_FOLDS)}-N")
        self._steps, self._score, self._task_id = 0, 0.0, task_id
        self.close()
        self._game = self._machine.game(self._config)
        seen = self._generate(solve=False)
        task = str(self._machine.call(self._game.getTaskDescription)).strip()
        instructions = Message(role="system", content=_INSTRUCTIONS.format(how=how_to_act(self._config.interface)))
        return instructions, Message(role="user", content=f"{task}\n\n{self._shown(seen)}")

    def step(self, action: Message) -> Outcome:
        """Carry out the commands of the message, up to the one that ends the game.

        Raises:
            InvalidRequest: no episode is running.
            EnvironmentFailed: Java broke.
        """
        if self._game is None:
            raise InvalidRequest("no episode is running: call reset first")
        left = self._config.max_steps - self._steps
        outcome, used = carried_out(action, self._config.interface, self._act, left)
        self._steps += used
        if outcome.terminated or outcome.truncated:
            self.close()
        return outcome

    def close(self) -> None:
        """Let go of the game."""
        if self._game is not None:
            self._machine.drop(self._game)
            self._game = None

    def solution(self) -> tuple[str, ...]:
        """Commands that win the game that was reset, which begins anew."""
        self._generate(solve=True)
        return tuple(str(command) for command in self._machine.call(self._game.getGoldActionSequence))

    def _generate(self, *, solve: bool) -> dict[str, Any]:
        fold, _, number = self._task_id.partition("-")
        return self._machine.answer(self._game.generateNewGameJSON, int(number), fold, solve)

    def _act(self, command: str) -> Reaction:
        seen = self._machine.answer(self._game.stepJSON, command)
        gained, self._score = seen["score"] - self._score, seen["score"]
        ended = bool(seen["tasksuccess"] or seen["taskfailure"])
        parts = (("score", gained),) if gained or ended else ()
        return Reaction(text=self._shown(seen), reward_parts=parts, terminated=ended)

    def _shown(self, seen: dict[str, Any]) -> str:
        text = str(seen["observation"]).strip()
        return text + listed(seen["validActions"]) if self._config.admissible else text


class _Machine:
    """A Java machine that is started when a game is wanted, and again if it has died. Ends with this process."""

    def __init__(self) -> None:
        """Raises MissingDependency without the package."""
        try:
            from py4j import java_gateway, protocol  # noqa: PLC0415  # optional: only this environment needs them
            from textworld_express import constants  # noqa: PLC0415
        except ImportError as error:
            raise MissingDependency("TextWorldExpress needs: pip install 'stepwell[textworld-express]'") from error
        logging.getLogger("py4j").setLevel(logging.CRITICAL)  # what fails is raised; it would say it again, at length
        self._java, self._archive, self._folder = java_gateway, constants.JAR_PATH, constants.BASEPATH
        self._broken = (protocol.Py4JError, OSError, ValueError)  # a Java exception, no connection, an answer cut off
        self._starting = threading.Lock()
        self._gateway: Any = None

    def game(self, config: TextWorldExpressConfig) -> Any:
        """A fresh game, which is still to be generated. Raises ConfigError if it does not take its parameters."""
        game = self.call(lambda: self._running().jvm.textworldexpress.runtime.PythonInterface())
        complaint = self.call(game.load, config.game, config.parameters)
        if complaint:
            raise ConfigError(f"{config.game} does not take the parameters {config.parameters!r}: {complaint}")
        return game

    def call(self, method: Any, *arguments: object) -> Any:
        """What Java says. Raises EnvironmentFailed if it broke."""
        try:
            return method(*arguments)
        except self._broken as error:
            raise EnvironmentFailed(f"Java failed: {type(error).__name__}: {str(error).splitlines()[0]}") from error

    def answer(self, method: Any, *arguments: object) -> dict[str, Any]:
        """What Java says in JSON."""
        said: dict[str, Any] = self.call(lambda: json.loads(method(*arguments)))
        return said

    def drop(self, game: Any) -> None:
        """Let Java forget a game; one that died has."""
        if self._alive():
            with contextlib.suppress(*self._broken):
                self._gateway.detach(game)

    def _running(self) -> Any:
        with self._starting:
            if not self._alive():
                self._gateway = self._started()
            return self._gateway

    def _alive(self) -> bool:
        return self._gateway is not None and self._gateway.java_process.poll() is None

    def _started(self) -> Any:
        try:
            port, process = self._java.launch_gateway(
                classpath=self._archive, cwd=self._folder, die_on_exit=True, return_proc=True
            )
        except FileNotFoundError as error:
            raise MissingDependency(
                "TextWorldExpress needs Java: install a JRE, such as default-jre-headless"
            ) from error
        parameters = self._java.GatewayParameters(port=port)
        return self._java.JavaGateway(gateway_parameters=parameters, java_process=process)
