"""Drawing the problem of a self-made ALFWorld game: what is to be done in a room, and where everything is.

A problem is written in the language of planners, over the domain and with the goals that the `alfworld` wheel (MIT)
has; all that is drawn follows from the random generator that is given.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from stepwell.environments.alfworld.rooms import ABILITIES, LAMPS, Room, class_of, tables
from stepwell.environments.alfworld.tasks import TaskType

_NEEDED: Final[Mapping[str, tuple[str, str]]] = {
    "pick_clean_then_place_in_recep": ("Cleanable", "SinkBasin"),
    "pick_heat_then_place_in_recep": ("Heatable", "Microwave"),
    "pick_cool_then_place_in_recep": ("Coolable", "Fridge"),
}
"""What the object of a task must be, and the class of receptacle that does it."""
_TABLES: Final = ("Desk", "SideTable", "Dresser", "DiningTable", "CoffeeTable", "Shelf")
_START: Final = "loc|start"
_MANGLED: Final = {"-": "_minus_", "|": "_bar_", "+": "_plus_", ".": "_dot_", ",": "_comma_"}
"""How the package writes characters that the language has another use for."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A task in a furnished room."""

    task: TaskType
    room: Room
    target: str
    """Class of the object that it is about."""
    home: str
    """Class of the receptacle that it must end up in; empty where it need not."""
    places: Mapping[str, str]
    """The receptacle that each object is in at the beginning, by ids."""

    @property
    def lamp(self) -> str:
        """Class of the lamp to be used; empty if none is."""
        return (self.room.lamp or "") if self.task == "look_at_obj_in_light" else ""

    @property
    def name(self) -> str:
        """As the published games are called."""
        return f"{self.task}-{self.target}-None-{self.home or self.lamp}-{self.room.number}"


def draw(task: TaskType, room: Room, chance: random.Random) -> Problem | None:
    """A problem of this type in this room; None if there is no object for it, or no place that it could start from."""
    choices = _targets(task, room)
    if room.kind not in tables().homes[task] or not choices:
        return None
    target, home = chance.choice(choices)
    places: dict[str, str] = {}
    copies = 2 if task == "pick_two_obj_and_place" else 1
    for kind in [target] * copies + [kind for kind in room.objects if kind != target for _ in range(_copies(chance))]:
        _place(kind, room, places, chance, banned=home if kind == target else "")
    if sum(class_of(thing) == target for thing in places) < copies:
        return None
    if room.lamp:
        _place_lamp(room.lamp, room, places, chance)
    return Problem(task, room, target, home, places)


def _copies(chance: random.Random) -> int:
    """How often another object is there."""
    return chance.choice((1, 1, 2))


def _targets(task: TaskType, room: Room) -> list[tuple[str, str]]:
    """(object, receptacle) classes that a task can be about, in a fixed order."""
    if task == "look_at_obj_in_light":
        return [(kind, "") for kind in room.objects] if room.lamp else []
    homes = sorted({class_of(receptacle) for receptacle in room.spots})
    pairs = [(kind, home) for kind in room.objects for home in homes if kind in tables().contents.get(home, ())]
    if task not in _NEEDED:
        return pairs
    ability, tool = _NEEDED[task]
    able = tables().abilities[ability]
    return [(kind, home) for kind, home in pairs if kind in able and home != tool] if room.having(tool) else []


def _place(kind: str, room: Room, places: dict[str, str], chance: random.Random, banned: str) -> None:
    """Put one more object of this class somewhere that it fits, but not into a receptacle of the class `banned`."""
    fitting = [
        key for key in room.spots if kind in tables().contents.get(class_of(key), ()) and class_of(key) != banned
    ]
    if fitting:
        places[f"{kind}|{len(places):02d}"] = chance.choice(fitting)


def _place_lamp(lamp: str, room: Room, places: dict[str, str], chance: random.Random) -> None:
    tables_there = [receptacle for kind in _TABLES for receptacle in room.having(kind)]
    places[f"{lamp}|{len(places):02d}"] = chance.choice(tables_there or list(room.spots))


def written(problem: Problem, goal: str) -> str:
    """The problem in PDDL; `goal` is the package's template for its type."""
    filled = goal.format(obj=problem.target, recep=problem.home, toggle=problem.lamp, mrecep="")
    body = "\n".join(
        [
            f"(define (problem plan_{problem.room.number})",
            "(:domain alfred)",
            "(:objects",
            *_declared(problem),
            ")",
            "(:init",
            "(= (total-cost) 0)",
            *_initial(problem),
            ")",
        ]
    )
    return body + filled.replace("#", "-")  # the package's templates write types so, to mangle names around them


def _declared(problem: Problem) -> Iterator[str]:
    """The things that there are, each with its type; nothing twice."""
    yield "agent1 - agent"
    kinds = tables().objects | set(LAMPS)
    yield from (f"{kind}Type - otype" for kind in sorted(kinds - tables().receptacles))
    yield from (f"{kind}Type - rtype" for kind in sorted(tables().receptacles))
    yield from (f"{_id(thing)} - object" for thing in problem.places)
    yield from (f"{_id(receptacle)} - receptacle" for receptacle in problem.room.spots)
    yield from (f"{_id(spot)} - location" for spot in sorted({*problem.room.spots.values(), _START}))


def _initial(problem: Problem) -> Iterator[str]:
    """All that holds at the beginning."""
    room = problem.room
    kinds = sorted({class_of(thing) for thing in problem.places})
    yield f"(atLocation agent1 {_id(_START)})"
    for receptacle, spot in room.spots.items():
        kind = class_of(receptacle)
        yield f"(receptacleType {_id(receptacle)} {kind}Type)"
        yield f"(receptacleAtLocation {_id(receptacle)} {_id(spot)})"
        if kind in tables().openable:
            yield f"(openable {_id(receptacle)})"
    for home in sorted({class_of(receptacle) for receptacle in room.spots}):
        yield from (f"(canContain {home}Type {kind}Type)" for kind in kinds if kind in tables().contents.get(home, ()))
    for thing, receptacle in problem.places.items():
        yield from _described(thing, receptacle, room.spots[receptacle])


def _described(thing: str, receptacle: str, spot: str) -> Iterator[str]:
    kind, identity = class_of(thing), _id(thing)
    yield f"(objectType {identity} {kind}Type)"
    yield f"(inReceptacle {identity} {_id(receptacle)})"
    yield f"(objectAtLocation {identity} {_id(spot)})"
    if kind not in LAMPS:
        yield f"(pickupable {identity})"
    if kind in tables().carried:
        yield f"(isReceptacleObject {identity})"
    yield from (f"({say} {identity})" for ability, say in ABILITIES.items() if kind in tables().abilities[ability])


def _id(name: str) -> str:
    """A name as the package writes it."""
    return "".join(_MANGLED.get(character, character) for character in name)
