"""What is trained on is what was seen, whatever of the conversation a context policy leaves out."""

import asyncio
import json
import logging
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from stepwell.algorithms import ALGORITHMS
from stepwell.algorithms.base import Inputs
from stepwell.algorithms.objective import Objective
from stepwell.cli.config import RecipeConfig
from stepwell.cli.training import Progress, TrainingRun, training_run
from stepwell.config import load_config
from stepwell.trainer.collate import MicroBatch, make_samples
from stepwell.trainer.update import Learner, LearnerConfig
from stepwell.types import Group, Step, Trajectory
from tests.cli.talking import SUM_UP, TURNS, write_talker

CONTEXTS = {
    "append": "{use: append}",
    "window": "{use: window, turns: 1}",
    "window of tokens": "{use: window, max_tokens: 24}",
    "drop reasoning": "{use: drop_reasoning}",
    "summarise": f"{{use: summarise, max_tokens: 20, keep: 1, instruction: {SUM_UP}}}",
}


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run before its first update, whose policy mostly thinks and then speaks."""
    folder = tmp_path_factory.mktemp("contexts")
    write_talker(folder / "model")
    with training_run(recipe(folder, "append", updates=0), folder / "run") as run:
        asyncio.run(run.train())
    return folder


def recipe(folder: Path, context: str, *, updates: int, more: Sequence[str] = ()) -> RecipeConfig:
    settings = {
        "policy.model": folder / "model",
        "policy.threads": 1,
        "environment": "{use: 'tests.cli.talking:TalkConfig'}",
        "algorithm.use": "grpo",
        "warmup": "{updates: 40, batch_size: 16, lr: 0.005}",
        "agent.max_tokens": 8,
        "rollout": f"{{group_size: 2, context: {CONTEXTS[context]}}}",
        "learner.lr": 0,  # so the policy that is looked at afterwards is the one that sampled
        "trainer": f"{{updates: {updates}, groups_per_update: 3}}",
    }
    return load_config(RecipeConfig, None, [*(f"{name}={value}" for name, value in settings.items()), *more])


@dataclass
class Trained:
    """One update by the real runner, gateway and trainer."""

    run: TrainingRun
    metrics: dict[str, float]
    rows: set[tuple[int, ...]] = field(default_factory=set)
    """What was trained on."""

    @property
    def groups(self) -> list[Group]:
        return [self.run.served.pool.group(line.info.id) for _, line in self.run.served.pool.groups()]

    @property
    def trajectories(self) -> list[Trajectory]:
        return [trajectory for group in self.groups for trajectory in group.trajectories]


@pytest.fixture
def trained(warm: Path, tmp_path: Path, context: str) -> Iterator[Trained]:
    rows: set[tuple[int, ...]] = set()

    def watch(batch: MicroBatch) -> None:
        rows.update(tuple(row.tolist()) for row in batch.rows())

    shutil.copytree(warm / "run", tmp_path / "run")
    with training_run(recipe(warm, context, updates=1), tmp_path / "run", Progress(on_micro_batch=watch)) as run:
        (update,) = asyncio.run(run.train())
        yield Trained(run, dict(update.metrics), rows)


def asked(step: Step) -> str:
    """The last message that the policy was shown."""
    return str(json.loads(step.request)["messages"][-1]["content"])


def flattened(run: TrainingRun, trajectory: Trajectory) -> Trajectory:
    """The same steps as if they were one conversation: each prompt is all that was said before."""
    encode, steps = run.served.renderer.encode, list(trajectory.steps[:1])
    for before, step in zip(trajectory.steps, trajectory.steps[1:], strict=False):
        end = "" if before.finish_reason == "stop" else "<|end|>"
        said = encode(f"{end}<|user|>{asked(step)}<|end|><|assistant|>")
        steps.append(replace(step, prompt_ids=np.concatenate([steps[-1].token_ids, said])))
    return replace(trajectory, steps=tuple(steps))


def ratio_error(trained: Trained, groups: Sequence[Group]) -> float:
    """The largest |ratio - 1| of a token, were the policy that sampled them trained on these groups."""
    algorithm = ALGORITHMS["grpo"]().build()
    credits = {credit.step_id: credit for group in groups for credit in algorithm.assign(group, Inputs())}
    learner = Learner(trained.run.served.policy, LearnerConfig(lr=0))
    return learner.update(make_samples(groups, credits, {}), Objective())["ratio_error"]


@pytest.mark.parametrize("context", CONTEXTS)
def test_ratios_are_one_with_the_contexts_that_were_recorded_and_leave_one_where_the_history_is_flattened(
    trained: Trained, context: str
) -> None:
    assert trained.metrics["ratio_error"] < 1e-4
    assert trained.rows == {tuple(s.token_ids.tolist()) for t in trained.trajectories for s in t.steps}
    flat = [replace(g, trajectories=tuple(flattened(trained.run, t) for t in g.trajectories)) for g in trained.groups]
    assert ratio_error(trained, trained.groups) < 1e-4
    if context == "append":  # the one policy of contexts that leaves a conversation as it is
        assert ratio_error(trained, flat) < 1e-4
    else:
        assert ratio_error(trained, flat) > 0.05


@pytest.mark.parametrize("context", ["summarise"])
def test_a_summary_is_a_step_that_is_trained_like_any_other(trained: Trained, context: str) -> None:
    shown = 0
    for trajectory in trained.trajectories:
        summaries = [step for step in trajectory.steps if asked(step) == SUM_UP]
        assert summaries
        assert len(trajectory.steps) == TURNS + len(summaries)
        assert all(step.trainable and tuple(step.token_ids.tolist()) in trained.rows for step in summaries)
        for step in summaries:
            told = json.loads(step.response)["content"].strip()
            after = json.loads(trajectory.steps[step.index + 1].request)["messages"]
            assert len(after) == 3 + bool(told)  # the task, what it says if it says anything, and the last turn
            shown += bool(told) and after[1]["content"].endswith(told)
    assert shown


@pytest.mark.parametrize("context", ["summarise"])
def test_a_later_process_sums_up_a_trunk_as_it_was_summed_up(
    warm: Path, tmp_path: Path, context: str, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(warm / "run", tmp_path / "run")
    caplog.set_level(logging.WARNING, "stepwell.rollout")
    for updates in (1, 2):
        forked = recipe(warm, context, updates=updates, more=["algorithm={use: rtpo, skip_alike: false}"])
        with training_run(forked, tmp_path / "run") as run:
            asyncio.run(run.train())
            groups = [line for _, line in run.served.pool.groups()]
            summed_up = [
                step.index
                for _, line in run.served.pool.trajectories()
                for step in run.served.pool.trajectory(line.info.id).steps
                if line.info.source == "trunk" and asked(step) == SUM_UP
            ]
    assert summed_up
    assert caplog.records == []
    assert len({group.info.origin_id for group in groups}) == 3
    assert len(groups) == 6
