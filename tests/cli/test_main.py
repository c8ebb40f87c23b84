"""The command line: mistakes are named in one line, and looking at things works without a model."""

import fcntl
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from stepwell import __version__
from stepwell.algorithms import ALGORITHMS
from stepwell.algorithms.base import AlgorithmConfig
from stepwell.algorithms.presets import load_preset, preset_names
from stepwell.cli.config import RecipeConfig
from stepwell.cli.recipes import find_recipe
from stepwell.config import component_config, load_config
from stepwell.environments import ENVIRONMENTS
from stepwell.rollout.env import TaskSetConfig
from tests.cli.processes import Finished

RECIPES = sorted(find_recipe("lookup").parent.glob("*.yaml"))
Command = Callable[..., Finished]


def test_an_unknown_setting_is_refused_with_the_nearest_name(command: Command, tmp_path: Path) -> None:
    done = command("train", "lookup", "trainer.update=3", "--folder", str(tmp_path / "run"))
    assert done.code == 1
    assert done.err.startswith("error: trainer.update: unknown setting; did you mean 'updates'?")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("train", "lokup"), "there is no recipe 'lokup'"),
        (("train", "lookup", "algorithm.use=grop"), "did you mean 'grpo'?"),
        (("train", "lookup", "environment.max_turn=3"), "did you mean 'max_turns'?"),
        (("train", "lookup", "searchqa_smollm2"), "one recipe at a time"),
        (("train", "--resume", "no/such/run"), "holds no run"),
        (("serve", "--host", "0.0.0.0"), "refusing to listen on 0.0.0.0 without keys"),
        (("serve", "--model", "lookup", "--run", "runs/x"), "either --model or --run"),
        (("serve", "--model", "gpt-5"), "no model 'gpt-5'"),
        (("run", "--gateway", "http://127.0.0.1:9", "--environment", "lookup"), "start one with `stepwell serve`"),
        (("pool", "stats", "--pool", "no/such/pool.sqlite"), "no pool at"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_mistake_is_one_line_on_stderr_and_exit_code_1(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command(*arguments)
    assert done.code == 1
    assert done.err.startswith("error: ")
    assert says in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_shipped_recipe_is_valid_down_to_its_components(path: Path) -> None:
    recipe = load_config(RecipeConfig, path)
    component_config(ENVIRONMENTS, TaskSetConfig, recipe.environment)
    component_config(ALGORITHMS, AlgorithmConfig, recipe.algorithm)
    assert recipe.name != RecipeConfig().name


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_fits_a_recipe_and_settings_come_on_top_of_it(name: str) -> None:
    preset = load_preset(name)
    recipe = load_config(RecipeConfig, None, ["algorithm.use=grpo", "algorithm.scale=none", *preset.overrides])
    assert dict(recipe.algorithm) == dict(preset.algorithm)
    component_config(ALGORITHMS, AlgorithmConfig, recipe.algorithm).build()
    assert {key: getattr(recipe.learner, key) for key in preset.learner} == {
        key: tuple(value) if isinstance(value, list) else value for key, value in preset.learner.items()
    }
    assert load_config(RecipeConfig, None, [*preset.overrides, "learner.lr=0.5"]).learner.lr == 0.5


def test_an_unknown_preset_is_an_error_that_names_the_nearest(command: Command) -> None:
    done = command("train", "lookup", "--preset", "capo-v4")
    assert (done.code, "did you mean 'capo-v5'" in done.err) == (1, True)


def test_the_version_is_the_packages(command: Command) -> None:
    assert command("--version").out.strip() == __version__


def test_without_a_command_the_help_lists_them(command: Command) -> None:
    out = command().out
    assert all(
        name in out for name in ("serve", "run", "train", "pool", "drift", "keys", "demo", "doctor", "dashboard")
    )


def test_the_algorithms_and_presets_can_be_listed(command: Command) -> None:
    out = command("train", "--algorithm", "list").out
    listed = [line.split()[0] for line in out.splitlines() if line.startswith("  ")]
    assert listed == [*ALGORITHMS, *preset_names()]


def test_doctor_reports_machine_packages_and_folders(command: Command) -> None:
    done = command("doctor")
    assert done.code == 0
    assert all(word in done.out for word in ("Python", "cores", "memory", "torch", "cache", "runs"))


def test_a_folder_that_holds_a_run_is_not_taken_for_another(command: Command, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("name: other")
    done = command("train", "lookup", "--folder", str(tmp_path))
    assert (done.code, "holds a run already" in done.err) == (1, True)
    assert (tmp_path / "recipe.yaml").read_text() == "name: other"


def test_two_trainers_never_share_a_folder(command: Command, tmp_path: Path) -> None:
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = command("train", "lookup", "--folder", str(tmp_path))
    assert (done.code, "another process trains in" in done.err) == (1, True)


def test_a_port_that_is_taken_is_refused_before_any_work(command: Command, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = command("train", "lookup", "--folder", str(tmp_path / "run"), "--port", str(port))
    assert (done.code, f"cannot listen on 127.0.0.1:{port}" in done.err) == (1, True)
    assert not (tmp_path / "run").exists()


def test_a_command_that_fails_leaves_the_latest_run_where_it_was(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command("train", "lookup", "tool_format=foo").code == 1
    assert not (tmp_path / "runs" / "latest").exists()


def test_somebody_elses_broken_file_is_named(command: Command, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("1 / 0")
    done = command("train", "lookup", f"algorithm.use={tmp_path}/bad.py:X", "--folder", str(tmp_path / "run"))
    assert (done.code, "bad.py: ZeroDivisionError" in done.err) == (1, True)
