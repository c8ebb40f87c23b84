"""A run whose samples come from a vLLM server, which gets the whole model after each update; here a server that speaks
vLLM's format in front of a second copy of the model."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from stepwell.cli.assembly import load_policy
from stepwell.cli.config import RecipeConfig
from stepwell.cli.training import training_run
from stepwell.engines.local import LocalEngine
from stepwell.errors import ConfigError, EngineError
from stepwell.policy.builtin import resolve_model
from tests.cli.processes import Finished
from tests.cli.test_local_mode import recipe
from tests.fakes.sampler import Sampler
from tests.fakes.servers import serving
from tests.fakes.vllm import FakeVLLM


@contextmanager
def vllm(own: RecipeConfig, development: bool = True) -> Iterator[tuple[Sampler, str]]:
    policy, renderer = load_policy(own)
    policy.name = "served"
    engine = LocalEngine(policy, eos_ids=sorted(renderer.eos_ids), max_batch=8, seed=5)
    sampler = Sampler(policy, engine)
    root = str(resolve_model(own.policy.model, own.seed))
    fake = FakeVLLM(sampler, development=development, root=root, names={policy.name})
    try:
        with serving(fake.app()) as url:
            yield sampler, url
    finally:
        engine.close()


def sampled_by(url: str, *settings: str) -> RecipeConfig:
    return recipe(f"engine={{use: vllm, urls: [{url}]}}", "rollout.workers=1", *settings)


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_each_update_is_published_whole_and_sampled_from(tmp_path: Path, ranks: int) -> None:
    with vllm(recipe()) as (sampler, url):
        own = sampled_by(url, "trainer.updates=2", f"learner.ranks={ranks}")
        with training_run(own, tmp_path) as run:
            updates = [dict(update.metrics) for update in asyncio.run(run.train())]
            trained = run.whole_policy().model.state_dict()
            steps = [step for trajectory in run.served.pool.scan() for step in trajectory.steps]
        assert sampler.reloads == 3  # what the run began with, and two updates
        for name, tensor in sampler.policy.model.state_dict().items():
            torch.testing.assert_close(tensor, trained[name])
    assert all(metrics["ratio_error"] < 1e-3 for metrics in updates)  # what sampled had the weights that learn
    assert {step.policy_version_min for step in steps} == {0, 1}
    assert {step.model for step in steps} == {"served"}


def test_a_server_that_takes_no_weights_is_named_with_what_it_must_be_started_with(tmp_path: Path) -> None:
    with vllm(recipe(), development=False) as (_, url):
        run = training_run(sampled_by(url), tmp_path)
        with pytest.raises(EngineError, match=r"version 0 .*VLLM_SERVER_DEV_MODE=1"), run:
            pass


def test_what_cannot_be_is_refused_before_anything_begins(tmp_path: Path, command: Callable[..., Finished]) -> None:
    with pytest.raises(ConfigError, match="leave `engine` out"):
        sampled_by("http://127.0.0.1:9", "mode=inline")
    with pytest.raises(ConfigError, match="did you mean 'vllm'"), training_run(recipe("engine.use=vlm"), tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_plan_says_who_samples(command: Callable[..., Finished]) -> None:
    done = command("train", "lookup", "mode=local", "engine={use: vllm, urls: [http://gpu:8001]}", "--dry-run")
    rows = [" ".join(row.split()) for row in done.out.splitlines()]
    assert "gateway, in front of http://gpu:8001" in rows
    assert "engine in servers, beside all this" in rows
