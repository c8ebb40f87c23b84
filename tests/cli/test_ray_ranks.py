"""A learner whose ranks are actors on two Ray nodes: the same update, and an end with a reason where one dies."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.cli.training import TrainingRun, training_run
from stepwell.errors import ConfigError, RankDied
from stepwell.policy.ranks import Place
from tests.cli.test_ranks import meets, recipe, trained_by

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'stepwell[ray]'"),
    pytest.mark.skipif(not os.environ.get("STEPWELL_KILLS"), reason="a cluster, three minutes: make test-kills"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of two CPUs each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("OMP_NUM_THREADS", "1")
        from ray.cluster_utils import Cluster  # noqa: PLC0415 - an optional dependency

        small = {"num_cpus": 2, "object_store_memory": 80 * 2**20, "include_dashboard": False}
        made = Cluster(initialize_head=True, head_node_args=small)
        try:
            made.add_node(num_cpus=2, object_store_memory=80 * 2**20)
            patch.setenv("RAY_ADDRESS", made.address)
            yield made
        finally:
            made.shutdown()


def ranks() -> dict[int, int]:
    """Process ids of ranks that are actors, and that of the node that each belongs to."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"ray::RankActor" in (folder / "cmdline").read_bytes():
                found[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    return found


def until_they_are_gone() -> None:
    deadline = time.monotonic() + 60
    while ranks():
        assert time.monotonic() < deadline, "a rank outlives its run"
        time.sleep(0.1)


def test_ranks_on_two_nodes_train_as_one_process_does(tmp_path: Path, cluster: Any) -> None:
    once = ("trainer.updates=1", "trainer.groups_per_update=1")  # players on Ray may begin several in any order
    with training_run(recipe(*once), tmp_path / "alone") as run:
        alone = trained_by(run, tmp_path / "alone")
    with training_run(recipe(*once, "mode=ray", "learner.ranks=3"), tmp_path / "apart") as run:
        nodes = set(ranks().values())
        apart = trained_by(run, tmp_path / "apart")
    assert len(nodes) == 2
    assert alone.keys() == apart.keys()
    gaps = np.concatenate([np.abs(apart[name] - array).ravel() for name, array in alone.items()])
    # AdamW's first step has one length, so it goes the other way where a gradient is nothing but rounding
    assert np.mean(gaps > 1e-4) < 0.01
    until_they_are_gone()


def test_a_rank_that_dies_is_named_as_the_cause_of_what_goes_wrong(tmp_path: Path, cluster: Any) -> None:
    from stepwell.cli.fleet.rank_actors import followed_in_cluster  # noqa: PLC0415 - an optional dependency

    with (
        pytest.raises(RankDied, match=r"rank 1 of the learner died.*--resume"),
        followed_in_cluster(2, 1, tmp_path, partial(meets, died="yes")) as place,
    ):
        meets(place)
    until_they_are_gone()


def test_a_rank_that_is_killed_while_it_trains_ends_the_run_which_goes_on(tmp_path: Path, cluster: Any) -> None:
    def killed(run: TrainingRun) -> None:
        (rank,) = ranks()
        os.kill(rank, signal.SIGKILL)
        trained_by(run, tmp_path)

    run = training_run(recipe("mode=ray", "trainer.updates=2", "learner.ranks=2"), tmp_path)
    with pytest.raises(RankDied, match=r"rank 1 of the learner died"), run as begun:
        killed(begun)
    with training_run(recipe("mode=ray", "trainer.updates=1", "learner.ranks=1"), tmp_path) as begun:
        trained_by(begun, tmp_path)
    until_they_are_gone()


def nothing(place: Place) -> None:
    pass


def test_too_few_nodes_and_a_disk_that_is_not_theirs_are_errors_that_say_so(
    tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stepwell.cli.fleet import rank_actors  # noqa: PLC0415 - an optional dependency

    elsewhere = rank_actors.followed_in_cluster(2, 1, tmp_path / "elsewhere", nothing)
    with pytest.raises(ConfigError, match=r"does not see .*/elsewhere: give --folder a disk"), elsewhere:
        pass
    monkeypatch.setattr(rank_actors, "_GRACE", 1.0)
    too_many = rank_actors.followed_in_cluster(6, 1, tmp_path, nothing)
    with pytest.raises(ConfigError, match=r"5 more ranks .* the cluster has 4"), too_many:
        pass
    until_they_are_gone()
