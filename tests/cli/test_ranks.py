"""A run whose learner is several processes: the same run, also when it goes on with another number of them."""

import asyncio
import os
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from stepwell.cli.config import RecipeConfig
from stepwell.cli.fleet.followers import followed
from stepwell.cli.recipes import find_recipe
from stepwell.cli.training import TrainingRun, training_run
from stepwell.config import load_config
from stepwell.errors import ConfigError, RankDied
from stepwell.policy.ranks import Place, joined
from stepwell.policy.weights import WEIGHTS_FILE

SMALL = (
    "mode=local",
    "trainer.groups_per_update=2",
    "trainer.checkpoint_every=1",
    "trainer.stop_at_reward=null",
    "rollout.group_size=2",
    "rollout.workers=1",
    "warmup.updates=3",
    "rewards=[{use: regex, pattern: '[a-m]', part: letters}]",
    "max_batch=1",  # so that what is sampled follows from the weights and the order of calls
    "rollout.concurrency=1",
)


def recipe(*settings: str) -> RecipeConfig:
    return load_config(RecipeConfig, find_recipe("lookup"), [*SMALL, *settings])


def trained(folder: Path, updates: int, ranks: int) -> dict[str, np.ndarray]:
    """What the run in `folder` publishes after so many updates."""
    with training_run(recipe(f"trainer.updates={updates}", f"learner.ranks={ranks}"), folder) as run:
        return trained_by(run, folder)


def trained_by(run: TrainingRun, folder: Path) -> dict[str, np.ndarray]:
    """The same of a run that has begun."""
    made = asyncio.run(run.train())
    updates = run.recipe.trainer.updates
    assert run.whole_policy().version == updates
    assert all(dict(update.metrics)["grad_norm"] > 0 for update in made)
    return load_file(folder / "weights" / f"{updates:06d}" / WEIGHTS_FILE)


@pytest.mark.slow
def test_two_ranks_train_as_one_does_and_a_run_goes_on_with_another_number_of_them(tmp_path: Path) -> None:
    alone = trained(tmp_path / "alone", 2, ranks=1)
    trained(tmp_path / "together", 1, ranks=2)
    together = trained(tmp_path / "together", 2, ranks=1)
    assert alone.keys() == together.keys()
    for name, array in alone.items():
        np.testing.assert_allclose(together[name], array, atol=1e-4, err_msg=name)  # a tenth of one step of AdamW


def test_an_engine_that_samples_from_what_is_trained_needs_one_rank() -> None:
    with pytest.raises(ConfigError, match="mode=local"):
        recipe("mode=inline", "learner.ranks=2")


# who dies


def meets(place: Place, died: str = "") -> None:
    with joined(place) as ranks:
        ranks.exchanged(place.rank)
        if died:
            os.kill(os.getpid(), signal.SIGKILL)
        ranks.exchanged(place.rank)


def test_a_rank_that_dies_is_named_as_the_cause_of_what_goes_wrong() -> None:
    with (
        pytest.raises(RankDied, match=r"rank 1 of the learner died \(status -9\).*--resume"),
        followed(2, partial(meets, died="yes")) as place,
    ):
        meets(place)
