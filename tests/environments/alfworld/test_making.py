"""Self-made games: drawn from a seed, each won by the planner."""

import json
import random
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from stepwell.environments.alfworld import TASK_TYPES, make_games
from stepwell.environments.alfworld.__main__ import main
from stepwell.environments.alfworld.problems import draw, written
from stepwell.environments.alfworld.rooms import class_of, rooms, tables
from stepwell.errors import InvalidRequest
from tests.environments.alfworld.conftest import SEED


def test_each_type_has_a_game_that_its_walkthrough_wins(games: Path) -> None:
    found = sorted(games.glob("train/*/*/game.tw-pddl"))
    assert len(found) == len(TASK_TYPES)
    for path in found:
        game, about = json.loads(path.read_text()), json.loads(path.with_name("traj_data.json").read_text())
        assert game["solvable"] is True
        assert 3 <= len(game["walkthrough"]) <= 20
        assert path.parent.parent.name.startswith(about["task_type"])


def test_the_same_arguments_find_the_same_games_and_make_none_again(games: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in games.rglob("game.tw-pddl")}
    again = make_games(games, len(TASK_TYPES), seed=SEED)
    assert {path: path.stat().st_mtime_ns for path in games.rglob("game.tw-pddl")} == before
    assert set(again) <= set(before)


def test_rooms_of_the_unseen_split_are_in_no_other(games: Path) -> None:
    def numbers(split: str) -> set[int]:
        return {int(folder.name.rpartition("-")[2]) for folder in (games / split).iterdir()}

    assert all(number % 10 == 0 for number in numbers("valid_unseen"))
    assert not any(number % 10 == 0 for number in numbers("train") | numbers("valid_seen"))


def test_a_problem_is_nothing_but_what_the_seed_says(games: Path) -> None:
    room = next(room for room in rooms() if room.number == 1)
    problems = [draw("pick_and_place_simple", room, random.Random(seed)) for seed in (1, 1, 2)]
    assert problems[0] == problems[1] != problems[2]


@pytest.mark.parametrize("kind", TASK_TYPES)
def test_no_problem_is_solved_at_the_beginning_or_holds_what_does_not_fit(games: Path, kind: str) -> None:
    draws = [draw(kind, room, random.Random(9)) for room in rooms()]  # type: ignore[arg-type]
    problems = [problem for problem in draws if problem is not None]
    assert problems
    for problem in problems:
        assert problem.room.kind in tables().homes[kind]
        for thing, place in problem.places.items():
            if class_of(thing) != problem.room.lamp:
                assert class_of(thing) in tables().contents[class_of(place)]
            assert class_of(thing) != problem.target or class_of(place) != problem.home
        declared = written(problem, "(:goal (and)))").partition("(:init")[0].split("(:objects")[1].split("\n")
        names = [line.split(" - ")[0] for line in declared if " - " in line]
        assert len(set(names)) == len(names)


def test_an_unknown_type_or_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="types are pick_and_place_simple"):
        make_games(tmp_path, 1, ["pick_and_sell"])  # type: ignore[list-item]
    with pytest.raises(InvalidRequest, match="splits are train"):
        make_games(tmp_path, 1, split="dev")


def test_the_command_makes_games_and_says_which(games: Path, tmp_path: Path) -> None:
    application = typer.Typer()
    application.command()(main)
    asked = [str(tmp_path), "--train", "1", "--valid-seen", "0", "--valid-unseen", "0"]
    result = CliRunner().invoke(application, [*asked, "--task-type", "look_at_obj_in_light"])
    assert result.exit_code == 0, result.output
    (path,) = tmp_path.glob("train/look_at_obj_in_light-*/trial_train-0-0")
    assert path.name in result.output
    refused = CliRunner().invoke(application, [*asked, "--task-type", "pick_and_sell"])
    assert refused.exit_code == 1
    assert "types are" in refused.output
