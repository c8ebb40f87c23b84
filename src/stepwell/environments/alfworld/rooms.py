"""The rooms that self-made ALFWorld games take place in: 120 floor plans of AI2-THOR that the `alfworld` wheel carries.

The wheel (MIT) has for each room the receptacles, with the spot that one stands on to reach into them, and the classes
of objects that were seen there; and tables of which object goes where, and of what can be done to it. Nothing of that
is part of Stepwell: it is read from the installed package.
"""

import functools
import json
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stepwell.environments.alfworld.game import require

LAMPS: Final = ("DeskLamp", "FloorLamp")
ABILITIES: Final[Mapping[str, str]] = {
    "Cleanable": "cleanable",
    "Heatable": "heatable",
    "Coolable": "coolable",
    "Toggleable": "toggleable",
    "Sliceable": "sliceable",
}
"""What can be done to objects of some classes: the package's word, and its predicate."""


@dataclass(frozen=True, slots=True)
class Tables:
    """What goes for all rooms."""

    contents: Mapping[str, Set[str]]
    """The classes of objects that a class of receptacles holds."""
    abilities: Mapping[str, Set[str]]
    """The classes of objects that a word of `ABILITIES` is true of."""
    receptacles: Set[str]
    """Classes of receptacles that stay where they are."""
    carried: Set[str]
    """Classes of receptacles that are objects too, such as cups."""
    objects: Set[str]
    """Classes of objects, `carried` ones too."""
    openable: Set[str]
    """Classes of receptacles with a door."""
    homes: Mapping[str, Set[str]]
    """The kinds of rooms that a task type is set in."""


@dataclass(frozen=True, slots=True)
class Room:
    """A floor plan."""

    number: int
    kind: str
    """Kitchen, LivingRoom, Bedroom or Bathroom."""
    spots: Mapping[str, str]
    """Where one stands to reach a receptacle, by the receptacle's id."""
    objects: Sequence[str]
    """Classes of objects that belong there and fit somewhere, in alphabetical order."""
    lamp: str | None
    """Class of the lamp, if there is one."""

    def having(self, kind: str) -> list[str]:
        """The receptacles of a class."""
        return [receptacle for receptacle in self.spots if class_of(receptacle) == kind]


def class_of(identity: str) -> str:
    """The class of an object or receptacle: `Apple|1` is an Apple, `Sink|…|SinkBasin` a SinkBasin."""
    parts = identity.split("|")
    return parts[-1] if parts[-1].endswith("Basin") else parts[0]


@functools.cache
def tables() -> Tables:
    """The package's tables. Raises MissingDependency without it."""
    require()
    import alfworld.gen.constants as known  # noqa: PLC0415  # optional, see `game.require`

    carried = frozenset(known.MOVABLE_RECEPTACLES)
    return Tables(
        contents=known.VAL_RECEPTACLE_OBJECTS,
        abilities=known.VAL_ACTION_OBJECTS,
        receptacles=frozenset(known.RECEPTACLES) - carried,
        carried=carried,
        objects=frozenset(known.OBJECTS) | carried,
        openable=frozenset(known.OPENABLE_CLASS_LIST),
        homes=known.GOALS_VALID,
    )


@functools.cache
def rooms() -> tuple[Room, ...]:
    """All floor plans, in the order of their numbers. Raises MissingDependency without the package."""
    tables()
    import alfworld.gen.constants as known  # noqa: PLC0415  # optional, see `game.require`

    folder = Path(known.__file__).parent / "layouts"
    kinds = {number: kind for kind, numbers in known.SCENE_TYPE.items() for number in numbers}
    found = [re.fullmatch(r"FloorPlan(\d+)-openable", path.stem) for path in folder.glob("*-openable.json")]
    numbers = sorted(int(match[1]) for match in found if match)
    return tuple(_room(folder, number, kinds[number]) for number in numbers)


def _room(folder: Path, number: int, kind: str) -> Room:
    reach = json.loads((folder / f"FloorPlan{number}-openable.json").read_text(encoding="utf-8"))
    seen = set(json.loads((folder / f"FloorPlan{number}-objects.json").read_text(encoding="utf-8")))
    spots = {key: _spot(*place) for key, place in sorted(reach.items()) if class_of(key) in tables().receptacles}
    held = set().union(*(tables().contents.get(class_of(key), ()) for key in spots))
    objects = sorted((seen & held & tables().objects) - tables().receptacles - set(LAMPS))
    return Room(number, kind, spots, objects, next((lamp for lamp in LAMPS if lamp in seen), None))


def _spot(x: float, z: float, turn: float, tilt: float) -> str:
    """Name of a place in quarter metres, and of where one looks from there, in the form of ALFRED's."""
    return f"loc|{round(x * 4)}|{round(z * 4)}|{turn // 90:.0f}|{tilt:.0f}"
