"""The task set: the published splits' form and self-made games, by one loader."""

import json
import shutil
from pathlib import Path

import pytest

from stepwell.environments.alfworld import TASK_TYPES, AlfWorld, AlfWorldConfig
from stepwell.errors import InvalidRecord, InvalidRequest, MissingDependency, NotFound
from stepwell.rendering.messages import Message
from tests.environments.laws import call, play, say


def test_tasks_are_folders_and_know_their_type(task_set: AlfWorld) -> None:
    tasks = task_set.tasks("train")
    assert sorted(map(task_set.task_type, tasks)) == sorted(TASK_TYPES)
    assert all(task.startswith(f"train/{task_set.task_type(task)}-") for task in tasks)
    assert task_set.tasks("test") == task_set.tasks("valid_unseen") != task_set.tasks("valid_seen")
    with pytest.raises(InvalidRequest, match="no split 'dev'"):
        task_set.tasks("dev")
    with pytest.raises(NotFound):
        task_set.task_type("train/none")


def copied(games: Path, folder: Path) -> Path:
    """The seen validation game, to be tampered with."""
    shutil.copytree(games / "valid_seen", folder / "valid_seen")
    (game,) = folder.rglob("game.tw-pddl")
    return game


def rewrite(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("solvable", [False, None])
def test_games_that_nobody_is_known_to_win_are_left_out(games: Path, tmp_path: Path, solvable: object) -> None:
    rewrite(copied(games, tmp_path), solvable=solvable)
    assert AlfWorldConfig(path=tmp_path).build().tasks("valid_seen") == ()


@pytest.mark.parametrize("name", ["pick_and_place_with_movable_recep-1", "look-AppleSliced-2"])
def test_movable_receptacles_and_sliced_objects_are_left_out(games: Path, tmp_path: Path, name: str) -> None:
    folder = copied(games, tmp_path).parent.parent
    folder.rename(folder.with_name(name))
    assert AlfWorldConfig(path=tmp_path).build().tasks("valid_seen") == ()


def test_types_choose_games(games: Path) -> None:
    tasks = AlfWorldConfig(path=games, types=("look_at_obj_in_light",)).build()
    assert [tasks.task_type(task) for task in tasks.tasks("train")] == ["look_at_obj_in_light"]
    assert tasks.tasks("valid_seen") == ()


def test_a_broken_file_is_named(games: Path, tmp_path: Path) -> None:
    game = copied(games, tmp_path)
    for file in (game, game.with_name("traj_data.json")):
        whole = file.read_text()
        file.write_text(whole[:-20])
        with pytest.raises(InvalidRecord, match=file.name):
            AlfWorldConfig(path=tmp_path).build()
        file.write_text(whole)


def test_without_games_it_says_how_to_get_some(games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    with pytest.raises(MissingDependency, match="alfworld-download"):
        AlfWorldConfig().build()


def test_the_published_folder_is_found_by_the_packages_variable(
    games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    (tmp_path / "json_2.1.1").symlink_to(games)
    assert len(AlfWorldConfig().build().tasks("train")) == len(TASK_TYPES)


@pytest.mark.parametrize("interface", ["tool", "text"])
@pytest.mark.parametrize("kind", TASK_TYPES)
def test_the_walkthrough_earns_one_at_its_last_command(games: Path, kind: str, interface: str) -> None:
    tasks = AlfWorldConfig(path=games, types=(kind,), interface=interface).build()
    (task,) = tasks.tasks("train")
    commands = json.loads((games / task / "game.tw-pddl").read_text())["walkthrough"]
    give = {"tool": lambda command: call("act", command=command), "text": say}[interface]
    *before, last = play(tasks, task, [give(command) for command in commands])
    assert all(outcome.reward_parts == () and not outcome.terminated for outcome in before)
    assert last.reward_parts == (("won", 1.0),)
    assert last.terminated


def opening(tasks: AlfWorld) -> tuple[Message, ...]:
    return tasks.make().reset(tasks.tasks("train")[0])


def test_what_is_possible_is_told_only_if_wanted(games: Path, task_set: AlfWorld) -> None:
    plain, told = opening(task_set), opening(AlfWorldConfig(path=games, admissible=True).build())
    assert "Your task is to: " in plain[1].content
    assert "You can:" not in plain[1].content
    assert told[1].content.startswith(plain[1].content + "\nYou can: go to ")


def test_too_many_commands_truncate_even_within_one_message(games: Path) -> None:
    tasks = AlfWorldConfig(path=games, max_steps=3).build()
    three = call("act", command="look").tool_calls * 3
    (outcome,) = play(tasks, tasks.tasks("train")[0], [Message(role="assistant", tool_calls=three)])
    assert outcome.truncated
    assert outcome.reward == 0


def test_a_step_without_an_episode_is_refused(task_set: AlfWorld) -> None:
    with pytest.raises(InvalidRequest, match="call reset first"):
        task_set.make().step(say("look"))
