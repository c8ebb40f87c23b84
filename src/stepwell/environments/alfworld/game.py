"""One ALFWorld game, played from any of its states.

Wraps `alfworld` (https://github.com/alfworld/alfworld, MIT), which plays a PDDL problem by TextWorld (MIT) with the
state machine of Fast Downward (GPL-3.0) and words everything by a grammar. All of it is imported when a game is loaded,
and nothing of it is part of Stepwell.

A state is a value. The package keeps *the* state of a game inside a C library, and cannot copy it; but what the library
reads when it loads a problem says where to begin, so it can be made to begin anywhere. Episodes of a game therefore
share one loaded game, each brings the state that it is in, and a fork is the same value held twice. Loading takes a
second or more, going to another state milliseconds, and none at all to the state that was left last.

More than nine tenths of a step of the unchanged package go into wording, again and again, the same possible commands.
How a command reads depends on its action and arguments alone, so each is worded once per game.
"""

import contextlib
import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from stepwell.errors import EnvironmentFailed, MissingDependency

_PACKAGE: Final = threading.RLock()
"""Held while the package works: its parsers, and what it does to `sys` while it translates, are one for all games."""
_IDLE: Final[list[Any]] = []
"""Worlds of the package that nobody plays. Each has a library of its own, which does not survive being unloaded."""
_VARIABLE: Final = re.compile(r"begin_variable\nvar\d+\n-?\d+\n\d+\n(.*?)\nend_variable", re.DOTALL)
"""The values of a variable, one a line, in the text of a planning problem (Fast Downward's SAS format, version 3)."""
_ATOM: Final = re.compile(r"Atom (\S+)\((.*)\)")
_STATE: Final = re.compile(r"(?<=begin_state\n).*?(?=\nend_state)", re.DOTALL)
_IMPOSSIBLE: Final = "Nothing happens."


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Where a game is."""

    facts: frozenset[Any]
    """All that holds, as TextWorld's propositions. What the planning problem has variables for follows from them."""


@dataclass(frozen=True, slots=True)
class Told:
    """What followed a command."""

    state: State
    text: str
    won: bool


@contextlib.contextmanager
def package() -> Iterator[None]:
    """For as long as the package works. It pretends to be a program of its own; that is put right at the end."""
    with _PACKAGE:
        arguments = sys.argv
        try:
            yield
        finally:
            sys.argv = arguments


def require() -> None:
    """Raises MissingDependency without the package."""
    try:
        with package():
            import alfworld.agents.environment.alfred_tw_env  # noqa: F401, PLC0415  # optional, heavy, and has GPL parts
    except ImportError as error:
        raise MissingDependency(
            "ALFWorld needs: pip install 'stepwell[alfworld]' (it compiles for a few minutes, and brings jericho and "
            "fast-downward-textworld, which are under the GPL)"
        ) from error


def empty_world() -> Any:
    """A world of the package, to load a game into; call within `package()`."""
    import textworld  # noqa: PLC0415  # optional, see `require`
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler  # noqa: PLC0415
    from textworld.envs import PddlEnv  # noqa: PLC0415

    return _IDLE.pop() if _IDLE else AlfredDemangler(PddlEnv(textworld.EnvInfos()), shuffle=False)


def give_back(world: Any) -> None:
    """Let another game be loaded into a world."""
    _IDLE.append(world)


class Game:
    """A loaded game. Safe to use from several threads, one of which gets its turn at a time."""

    def __init__(self, path: Path) -> None:
        """Load a `game.tw-pddl`; takes a second or so.

        Raises:
            EnvironmentFailed: the package cannot make a game of it.
        """
        with package():
            self._world = _World(path)
            self.start: Final = self._world.state()
            self._now: State | None = self.start
            self._possible = self._world.possible()
            self.opening: Final = self._world.opening()
            """What an episode begins with; it ends with the task."""

    def commands(self, state: State) -> tuple[str, ...]:
        """What is possible in a state, in alphabetical order."""
        with package():
            self._go_to(state)
            return tuple(sorted(self._possible))

    def act(self, state: State, command: str) -> Told:
        """What a command brings in a state, which itself is not changed."""
        with package():
            self._go_to(state)
            action = self._possible.get(command)
            if action is None:
                return Told(state, _IMPOSSIBLE, self._world.won())
            self._now = None  # should anything fail on the way, nobody knows where the world is
            text = self._world.apply(action)
            after, self._possible = self._world.state(), self._world.possible()
            self._now = after
            return Told(after, text, self._world.won())

    def close(self) -> None:
        """Let another game be loaded in its place. Nothing else is called afterwards."""
        with package():
            self._world.close()

    def _go_to(self, state: State) -> None:
        if state is not self._now:
            self._now = None
            self._world.go_to(state)
            self._possible = self._world.possible()
            self._now = state


class Shelf:
    """The games of a task set, of which a few are loaded: those that were played last."""

    def __init__(self, paths: Mapping[str, Path], room: int) -> None:
        """`paths` of the games, by name; `room` is how many may be loaded."""
        self._paths = paths
        self._room = room
        self._loaded: OrderedDict[str, Game] = OrderedDict()

    def __contains__(self, name: object) -> bool:
        """Whether there is such a game."""
        return name in self._paths

    def start(self, name: str) -> tuple[str, State]:
        """What a game begins with, and its first state. Raises as `Game`."""
        game = self._game(name)
        return game.opening, game.start

    def commands(self, name: str, state: State) -> tuple[str, ...]:
        """See `Game.commands`."""
        with package():
            return self._game(name).commands(state)

    def act(self, name: str, state: State, command: str) -> Told:
        """See `Game.act`."""
        with package():
            return self._game(name).act(state, command)

    def _game(self, name: str) -> Game:
        with package():
            if name not in self._loaded:
                self._loaded[name] = Game(self._paths[name])
            self._loaded.move_to_end(name)
            while len(self._loaded) > self._room:
                _, least = self._loaded.popitem(last=False)
                least.close()
            return self._loaded[name]


@dataclass
class _World:
    """What the package loaded of a game, with the one state that it is in."""

    path: Path
    _texts: dict[tuple[str, ...], str] = field(default_factory=dict)
    """How commands read, by action and arguments."""

    def __post_init__(self) -> None:
        try:
            self._loaded = empty_world()
            self._loaded.load(str(self.path))
        except (Exception, SystemExit) as error:  # of three parsers, and a translator that was a program
            raise EnvironmentFailed(f"{self.path} is no game: {type(error).__name__}: {error}") from error
        inner = self._loaded.unwrapped
        self._planner, self._rules, self._grammar = inner._pddl_state, inner._logic, inner._logic.grammar
        self._things = inner._entity_infos
        self._names = {key: thing.name for key, thing in self._things.items()}
        problem = str(self._planner.sas)
        self._before, self._after = _STATE.split(problem, maxsplit=1)
        self._variables = [self._variable(values.split("\n")) for values in _VARIABLE.findall(problem)]

    def opening(self) -> str:
        """The text that a game begins with."""
        return str(self._grammar.derive("#intro#", self._context({})))

    def state(self) -> State:
        """The state now."""
        return State(frozenset(self._planner.facts))

    def go_to(self, state: State) -> None:
        """Load the problem again, to begin in `state`."""
        values = (holds if fact in state.facts else 1 - holds for fact, holds in self._variables)
        begin = "\n".join(map(str, values))
        self._planner.downward_lib.load_sas(f"{self._before}{begin}{self._after}".encode())
        facts = set(self._planner.facts)
        self._planner.remove_facts(facts - state.facts)
        self._planner.add_facts(state.facts - facts)

    def possible(self) -> dict[str, Any]:
        """The package's actions that can be taken now, by their commands."""
        actions: dict[str, Any] = {}
        for action in self._planner.all_applicable_actions():
            actions.setdefault(self._text(action), action)
        return actions

    def apply(self, action: Any) -> str:
        """Take an action; returns what is said about it."""
        self._planner.apply(action)
        return str(self._grammar.derive(action.feedback_rule, self._context(action.mapping)))

    def won(self) -> bool:
        """Whether the goal holds."""
        return bool(self._planner.check_goal())

    def close(self) -> None:
        """See `Game.close`."""
        give_back(self._loaded)

    def _text(self, action: Any) -> str:
        key = (action.name, *(value.name for value in action.mapping.values()))
        if key not in self._texts:
            action.command_template = self._grammar.derive(action.command_template, self._context(action.mapping))
            self._texts[key] = str(action.format_command(self._names))
        return self._texts[key]

    def _context(self, mapping: Any) -> dict[str, Any]:
        """What the grammar knows while it words something."""
        return {
            "state": self._planner,
            "facts": list(self._planner.facts),
            "variables": {place.name: self._things[value.name] for place, value in mapping.items()},
            "mapping": mapping,
            "entity_infos": self._things,
        }

    def _variable(self, values: Sequence[str]) -> tuple[Any, int]:
        """The fact that a variable is about, and the value that says that it holds."""
        from textworld.logic import Proposition, Variable  # noqa: PLC0415  # as in `require`

        stated = [(number, match) for number, value in enumerate(values) if (match := _ATOM.fullmatch(value))]
        if len(values) != 2 or len(stated) != 1:
            raise EnvironmentFailed(f"{self.path}: a variable of the planning problem is not about one fact: {values}")
        ((number, match),) = stated
        things = [thing for thing in match[2].split(", ") if thing]
        kinds = self._planner.name2type
        return Proposition(match[1], [Variable(thing, kinds[thing]) for thing in things]), number
