"""A game played from any of its states, compared with the package as it is."""

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from stepwell.environments.alfworld import TASK_TYPES
from stepwell.environments.alfworld.game import Game, Shelf, State
from stepwell.errors import EnvironmentFailed


def game_of(games: Path, kind: str) -> Path:
    (path,) = games.glob(f"train/{kind}-*/*/game.tw-pddl")
    return path


def walkthrough(path: Path) -> list[str]:
    return list(json.loads(path.read_text())["walkthrough"])


def upstream(path: Path) -> Any:
    """The package's own environment, reset."""
    import textworld  # noqa: PLC0415  # optional
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler  # noqa: PLC0415
    from textworld.envs import PddlEnv  # noqa: PLC0415

    world = AlfredDemangler(PddlEnv(textworld.EnvInfos(admissible_commands=True, won=True)), shuffle=False)
    world.load(str(path))
    return world


def wandering(path: Path, steps: int) -> list[str]:
    """The walkthrough with detours, and with commands that nothing comes of."""
    draw = random.Random(3)
    detours = ["look", "inventory", "dance", "examine desk 1", "help"]
    return [command for part in walkthrough(path) for command in (*draw.sample(detours, steps), part)]


@pytest.mark.parametrize("kind", TASK_TYPES)
def test_every_text_and_possible_command_is_the_packages_own(games: Path, kind: str) -> None:
    path = game_of(games, kind)
    game, world = Game(path), upstream(path)
    seen = world.reset()
    state = game.start
    assert game.opening == seen.feedback
    for command in wandering(path, 1):
        assert list(game.commands(state)) == seen["admissible_commands"]
        seen, score, _ = world.step(command)
        told = game.act(state, command)
        assert (told.text, told.won) == (seen.feedback, score == 1)
        state = told.state
    assert told.won
    game.close()


def library_state(game: Game) -> set[str]:
    """What the C library holds to be true, but for what it derives."""
    from textworld.envs.pddl.logic import Atom  # noqa: PLC0415  # optional

    library = game._world._planner.downward_lib
    atoms = (Atom * library.get_state_size())()
    library.get_state(atoms)
    return {atom.name for atom in atoms if atom.name.startswith("Atom") and "new-axiom" not in atom.name}


@pytest.mark.parametrize("kind", ["look_at_obj_in_light", "pick_heat_then_place_in_recep"])
def test_the_library_is_in_the_state_that_the_facts_say_however_one_jumps(games: Path, kind: str) -> None:
    path = game_of(games, kind)
    game, draw = Game(path), random.Random(5)
    states = [game.start]
    for command in walkthrough(path)[:-1]:
        states.append(game.act(states[-1], command).state)
    for _ in range(60):
        state = draw.choice(states)
        commands = [command for command in game.commands(state) if not command.startswith(("examine", "help"))]
        told = game.act(state, draw.choice(commands))
        if not told.won:
            states.append(told.state)
        world = game._world
        stated = {fact for fact, _ in world._variables if fact in told.state.facts and "new-axiom" not in fact.name}
        held = {f"Atom {fact.name}({', '.join(thing.name for thing in fact.arguments)})" for fact in stated}
        assert library_state(game) == held
    game.close()


def test_a_lamp_that_is_used_twice_is_where_it_was(games: Path) -> None:
    path = game_of(games, "look_at_obj_in_light")
    game = Game(path)
    *way, use = walkthrough(path)
    assert use.startswith("use ")
    state = game.start
    there = [command for command in way if command.startswith("go to")][-1]
    for command in (there, use, use):
        state = game.act(state, command).state
    assert any(fact.name == "istoggled" for fact in state.facts)
    assert not any(fact.name == "ison" for fact in state.facts)
    game.close()


def play(game: Game, state: State, commands: list[str]) -> list[tuple[str, bool, tuple[str, ...]]]:
    told = []
    for command in commands:
        one = game.act(state, command)
        state = one.state
        told.append((one.text, one.won, game.commands(state)))
    return told


@pytest.mark.parametrize("kind", TASK_TYPES)
def test_a_state_of_one_loaded_game_is_a_state_of_another(games: Path, kind: str) -> None:
    path = game_of(games, kind)
    first, second = Game(path), Game(path)
    plan = walkthrough(path)
    middle = first.start
    for command in plan[: len(plan) // 2]:
        middle = first.act(middle, command).state
    rest = plan[len(plan) // 2 :]
    expected = play(first, middle, rest)
    assert expected[-1][1]
    assert play(second, middle, rest) == expected
    play(first, first.start, ["look", "inventory"])
    assert play(first, middle, rest) == expected
    first.close()
    second.close()


def test_a_shelf_loads_a_game_again_that_had_to_make_room(games: Path) -> None:
    one, other = game_of(games, TASK_TYPES[0]), game_of(games, TASK_TYPES[1])
    shelf = Shelf({"one": one, "other": other}, room=1)
    _, state = shelf.start("one")
    for command in walkthrough(one)[:-1]:
        state = shelf.act("one", state, command).state
    shelf.start("other")
    assert shelf.act("one", state, walkthrough(one)[-1]).won


def test_a_file_that_is_no_game_is_the_environments_failure(games: Path, tmp_path: Path) -> None:
    whole = json.loads(game_of(games, TASK_TYPES[0]).read_text())
    for broken in ({}, whole | {"pddl_problem": "(define (problem"}, whole | {"grammar": "action {"}):
        path = tmp_path / "game.tw-pddl"
        path.write_text(json.dumps(broken))
        with pytest.raises(EnvironmentFailed, match="is no game"):
            Game(path)


def test_loading_leaves_the_programs_arguments_alone(games: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["stepwell", "run"])
    Game(game_of(games, TASK_TYPES[0])).close()
    assert sys.argv == ["stepwell", "run"]
