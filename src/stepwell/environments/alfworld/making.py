"""Making ALFWorld-domain games without ALFRED's data, which most machines cannot fetch.

A game is drawn, written as the package expects it, and handed to the package's planner, which must find a way to win;
the way is kept as the game's walkthrough, and walked once to see that it wins. A tenth of the rooms is kept for the
split `valid_unseen`. The grammar, the domain, the goals and their wording are those of the `alfworld` wheel (MIT).
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from stepwell.environments.alfworld.game import Game, empty_world, give_back, package
from stepwell.environments.alfworld.problems import Problem, draw, written
from stepwell.environments.alfworld.rooms import Room, rooms
from stepwell.environments.alfworld.tasks import SPLITS, TASK_TYPES, TaskType
from stepwell.errors import EnvironmentFailed, InvalidRequest

_UNSEEN: Final = 10
"""Of so many rooms one is kept for `valid_unseen`: the 10th, 20th and 30th of each kind."""
_LARGEST: Final[Mapping[TaskType, int]] = {"pick_two_obj_and_place": 16}
"""Receptacles of a room, at most: the planner takes a second or two, and minutes in larger rooms."""
_LARGE: Final = 22
"""The same for the other types."""
_ATTEMPTS: Final = 200
"""Draws until one must be a game: most rooms have no task of some type."""


def make_games(
    folder: Path,
    count: int,
    types: Sequence[TaskType] = TASK_TYPES,
    seed: int = 0,
    *,
    split: str = "train",
    made: Callable[[Path], object] = lambda _: None,
) -> list[Path]:
    """Make `count` games, of the types in turn, in `folder/split`; each takes seconds.

    The same arguments make the same games, and what is there already is not made again. `made` is told of each.

    Raises:
        InvalidRequest: there is no such split or type.
        MissingDependency: `alfworld` is not installed.
        EnvironmentFailed: no game was found that can be won.
    """
    wrong = set(types) - set(TASK_TYPES)
    if split not in SPLITS or wrong or not types:
        raise InvalidRequest(f"splits are {', '.join(SPLITS)}, types are {', '.join(TASK_TYPES)}")
    paths = []
    for number in range(count):
        paths.append(_make(folder / split, types[number % len(types)], f"{split}-{seed}-{number}", split))
        made(paths[-1])
    return paths


def _make(folder: Path, task: TaskType, name: str, split: str) -> Path:
    """The game that `name` stands for."""
    largest = _LARGEST.get(task, _LARGE)
    allowed = [room for room in rooms() if _kept(room) == (split == "valid_unseen") and len(room.spots) <= largest]
    for attempt in range(_ATTEMPTS):
        chance = random.Random(f"alfworld-{task}-{name}-{attempt}")
        problem = draw(task, chance.choice(allowed), chance)
        if problem is None:
            continue
        path = folder / problem.name / f"trial_{name}" / "game.tw-pddl"
        if path.with_name("traj_data.json").exists() or _write(problem, path, chance):
            return path
    raise EnvironmentFailed(f"none of {_ATTEMPTS} draws of {task} ({name}) could be won")


def _kept(room: Room) -> bool:
    return room.number % _UNSEEN == 0


def _write(problem: Problem, path: Path, chance: random.Random) -> bool:
    """Write a game if the planner can win it."""
    import alfworld.gen.goal_library as goals  # noqa: PLC0415  # optional; `rooms` has seen that it is there
    from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH  # noqa: PLC0415

    goal = goals.gdict[problem.task]
    lowered = {"obj": problem.target.lower(), "recep": problem.home.lower(), "toggle": problem.lamp.lower()}
    said = chance.choice(goal["templates"]).format(**lowered, mrecep="")
    game = {
        "pddl_domain": Path(ALFRED_PDDL_PATH).read_text(encoding="utf-8"),
        "grammar": Path(ALFRED_TWL2_PATH).read_text(encoding="utf-8").replace("UNKNOWN GOAL", said),
        "pddl_problem": written(problem, goal["pddl"]),
        "solvable": False,
        "walkthrough": [],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    _dump(game, path)
    plan = _planned(path)
    if not plan or not _wins(path, plan):
        return False
    _dump(game | {"solvable": True, "walkthrough": plan}, path)
    _dump(_about(problem), path.with_name("traj_data.json"))  # last: a game without it is not looked at
    return True


def _planned(path: Path) -> list[str]:
    """Commands that win, by the package's planner; none if it finds no way, or there is nothing to do."""
    with package():
        world = empty_world()
        world.request_infos.policy_commands = True
        world.load(str(path))
        plan = [str(command) for command in world.reset()["policy_commands"]]
        world.request_infos.policy_commands = False
        give_back(world)
        return plan


def _wins(path: Path, plan: Sequence[str]) -> bool:
    game = Game(path)
    try:
        state, won = game.start, [False]
        for command in plan:
            told = game.act(state, command)
            state = told.state
            won.append(told.won)
        return won[-1] and not any(won[:-1])
    finally:
        game.close()


def _about(problem: Problem) -> dict[str, object]:
    """What ALFRED's data say of a game, as far as it is the case here."""
    parameters = {"object_target": problem.target, "parent_target": problem.home, "toggle_target": problem.lamp}
    return {
        "task_type": problem.task,
        "scene": {"floor_plan": f"FloorPlan{problem.room.number}"},
        "pddl_params": parameters | {"mrecep_target": "", "object_sliced": False},
        "turk_annotations": {"anns": []},
        "origin": "self-made by Stepwell in ALFWorld's domain",
    }


def _dump(value: object, path: Path) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
