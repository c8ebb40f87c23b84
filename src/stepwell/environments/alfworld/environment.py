"""One episode of an ALFWorld game."""

from dataclasses import dataclass
from typing import Final

from stepwell.environments.alfworld.game import Shelf, State
from stepwell.environments.commands import Interface, Reaction, carried_out, how_to_act, listed, offered
from stepwell.errors import InvalidRequest, NotFound
from stepwell.rendering.messages import Message, Tool
from stepwell.rollout.env import Outcome

_INSTRUCTIONS: Final = """You are in a home, and have a task to do there. {how}
The commands, where OBJECT and RECEPTACLE are things with their numbers, such as desk 1:
look, inventory
go to RECEPTACLE, open RECEPTACLE, close RECEPTACLE
take OBJECT from RECEPTACLE, move OBJECT to RECEPTACLE
heat OBJECT with RECEPTACLE, cool OBJECT with RECEPTACLE, clean OBJECT with RECEPTACLE
slice OBJECT with OBJECT, use OBJECT, examine OBJECT, examine RECEPTACLE
What cannot be done where you are is answered by: Nothing happens."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an episode is."""

    game: str
    state: State
    steps: int


class AlfWorldEnvironment:
    """One episode: commands until the task is done, which earns the reward part `won`, 1."""

    def __init__(self, shelf: Shelf, interface: Interface, max_steps: int, *, admissible: bool) -> None:
        """Made by `AlfWorld.make`."""
        self._shelf = shelf
        self._interface: Interface = interface
        self._max_steps = max_steps
        self._admissible = admissible
        self._place: _Place | None = None

    @property
    def tools(self) -> tuple[Tool, ...]:
        """`act(command)`, or none."""
        return offered(self._interface)

    def reset(self, task_id: str, *, seed: int = 0) -> tuple[Message, ...]:  # noqa: ARG002
        """Say where one is, and what is to be done.

        Raises:
            NotFound: there is no such game.
            EnvironmentFailed: its file is no game.
        """
        if task_id not in self._shelf:
            raise NotFound(f"there is no ALFWorld game {task_id!r}")
        opening, state = self._shelf.start(task_id)
        self._place = _Place(task_id, state, 0)
        instructions = Message(role="system", content=_INSTRUCTIONS.format(how=how_to_act(self._interface)))
        return instructions, Message(role="user", content=opening + self._possible(self._place))

    def step(self, action: Message) -> Outcome:
        """Carry out the commands of the message, up to the one that wins.

        Raises:
            InvalidRequest: no episode is running.
        """
        if self._place is None:
            raise InvalidRequest("no episode is running: call reset first")
        before = self._place.steps
        outcome, used = carried_out(action, self._interface, self._act, self._max_steps - before)
        ended = outcome.terminated or outcome.truncated
        self._place = None if ended else _Place(self._place.game, self._place.state, before + used)
        return outcome

    def snapshot(self) -> object:
        """See `Forkable`."""
        return self._place

    def restore(self, snapshot: _Place | None) -> None:
        """See `Forkable`."""
        self._place = snapshot

    def _act(self, command: str) -> Reaction:
        assert self._place is not None  # `step` looked
        told = self._shelf.act(self._place.game, self._place.state, command)
        self._place = _Place(self._place.game, told.state, self._place.steps)
        if told.won:
            return Reaction(terminated=True, reward_parts=(("won", 1.0),))
        return Reaction(text=told.text + self._possible(self._place))

    def _possible(self, place: _Place) -> str:
        return listed(self._shelf.commands(place.game, place.state)) if self._admissible else ""
