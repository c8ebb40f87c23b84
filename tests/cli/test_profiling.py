"""`--profile` looks at one update, and lets it be what it would have been."""

import asyncio
import gzip
import json
from collections.abc import Callable
from pathlib import Path

from stepwell.cli.config import RecipeConfig
from stepwell.cli.profiling import TRACE_FILE, UpdateProfile
from stepwell.cli.recipes import find_recipe
from stepwell.cli.training import Progress, training_run
from stepwell.config import load_config
from tests.cli.processes import Finished


def profiled(folder: Path) -> UpdateProfile:
    small = ("trainer.groups_per_update=1", "rollout.group_size=2", "warmup.updates=1", "trainer.updates=3")
    profile = UpdateProfile(folder / TRACE_FILE)
    progress = Progress(on_collected=profile.collected, on_update=profile.update)
    with training_run(load_config(RecipeConfig, find_recipe("lookup"), small), folder, progress) as run:
        asyncio.run(run.train())
    return profile


def test_the_second_updates_forward_and_backward_pass_are_in_the_table_and_in_the_trace(tmp_path: Path) -> None:
    told = profiled(tmp_path).told()
    assert told.startswith("update 2\n")
    with gzip.open(tmp_path / TRACE_FILE) as file:
        names = {event.get("name") for event in json.load(file)["traceEvents"]}
    assert {"aten::mm", "MmBackward0"} <= names
    assert "aten::" in told
    assert str(tmp_path / TRACE_FILE) in told


def test_without_a_second_update_there_is_no_profile_and_the_run_ends_well(
    tmp_path: Path, command: Callable[..., Finished]
) -> None:
    small = ("trainer.groups_per_update=1", "rollout.group_size=2", "warmup.updates=1", "trainer.updates=1")
    done = command("train", "lookup", *small, "--profile", "--folder", str(tmp_path / "run"))
    assert (done.code, done.err) == (0, "")
    assert "no profile: it is of the second update" in done.out
    assert not (tmp_path / "run" / TRACE_FILE).exists()
