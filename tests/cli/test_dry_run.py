"""`stepwell train --dry-run`: the plan is printed, mistakes are found, and nothing is made of it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.processes import Finished

Command = Callable[..., Finished]


def test_the_plan_has_the_recipe_the_model_the_memory_and_what_would_be_written(
    command: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    settings = ("trainer.groups_per_update=3", "rollout.group_size=5", "mode=local", "rollout.workers=3")
    done = command("train", "lookup", *settings, "--dry-run", "--folder", str(folder))
    assert (done.code, done.err) == (0, "")
    rows = [" ".join(row.split()) for row in done.out.splitlines()]
    assert "groups_per_update: 3" in rows
    assert "parameters 448,640, and 8,321 of the critic (head)" in rows
    assert "trained 448,640 (100.0%: all)" in rows
    assert "groups 3 of 5 trajectories of one task: 15" in rows
    assert "moments of AdamW 3.49 MiB" in rows
    assert "players 3, with 64 trajectories at once in all" in rows
    assert f"folder {folder}" in rows
    assert not folder.exists()


def test_the_plan_of_a_run_that_is_taken_up_again_has_its_settings(command: Command, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("name: mine\npolicy: {model: lookup}\ntool_format: line\n")
    done = command("train", "--resume", str(tmp_path), "trainer.updates=7", "--dry-run")
    assert (done.code, "name: mine" in done.out, "updates: 7" in done.out) == (0, True, True)
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]


def test_what_nobody_else_needs_to_see_is_not_in_the_plan(command: Command, tmp_path: Path) -> None:
    settings = (
        "rewards=[{use: judge, urls: [http://127.0.0.1:9], model: m, api_key: sk-hush}]",
        "pool=postgresql://trainer:hush@127.0.0.1/stepwell",
    )
    done = command("train", "lookup", *settings, "--dry-run", "--folder", str(tmp_path / "run"))
    assert done.code == 0
    assert "hush" not in done.out
    assert "api_key: '***'" in done.out
    assert "max_tokens: 6" in done.out  # no secret
    assert done.out.count("postgresql://trainer:***@127.0.0.1/stepwell") == 2


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("policy.trainable_layers=9", "trainable_layers must be 1..3"),
        ("environment.max_turn=3", "did you mean 'max_turns'?"),
        ("tracking=[{use: tensorbord}]", "did you mean 'tensorboard'?"),
        ("rewards=[{use: jugde}]", "did you mean 'judge'?"),
        ("tool_format=foo", "foo"),
        ("policy.model=no-such-model", "no model 'no-such-model'"),
        ("trainer.max_staleness=1 algorithm.use=rtpo", "trainer.max_staleness=0"),
    ],
)
def test_a_wrong_setting_is_found(command: Command, tmp_path: Path, setting: str, says: str) -> None:
    settings = setting.split() if "algorithm" in setting else [setting]
    done = command("train", "lookup", *settings, "--dry-run", "--folder", str(tmp_path / "run"))
    assert done.code == 1
    assert says in done.err
