"""The loop hands the algorithm and the loss what they asked for, also after a restart."""

from pathlib import Path

import numpy as np
import pytest
import torch

from stepwell.algorithms import ALGORITHMS
from stepwell.algorithms.base import Algorithm, Inputs, Sweep, Teacher, broadcast
from stepwell.algorithms.objective import Objective
from stepwell.trainer.loop import Trainer
from stepwell.types import Credit, Group
from tests.trainer.test_loop import Bench, group_records


@pytest.fixture
def bench(tmp_path: Path):
    made = Bench(tmp_path)
    yield made
    made.pool.close()


class Told:
    """An algorithm that writes down what it was told."""

    def __init__(self, **fields) -> None:
        self.inputs: list[Inputs] = []
        self.rewards: list[float | None] = []
        settings = {"name": "told", "assign": self._assign, "objective": Objective(), **fields}
        self.algorithm = Algorithm(**settings)

    def _assign(self, group: Group, inputs: Inputs) -> list[Credit]:
        self.inputs.append(inputs)
        self.rewards += [trajectory.reward for trajectory in group.trajectories]
        steps = [step for trajectory in group.trajectories for step in trajectory.steps]
        return [Credit(step_id=s.id, advantages=broadcast(1.0 + s.index, len(s.response_ids))) for s in steps]


def unhinted(group: Group, _tokenize) -> dict[str, np.ndarray]:
    return {step.id: step.prompt_ids for trajectory in group.trajectories for step in trajectory.steps}


async def test_after_a_restart_the_teacher_is_still_the_copy_that_was_taken(bench: Bench) -> None:
    teacher = Teacher(prompts=unhinted, refresh_every=100)
    told = Told(teacher=teacher, needs_logprobs=True)
    await bench.train(bench.trainer(told.algorithm, updates=2))
    again = Told(teacher=teacher, needs_logprobs=True)
    trainer: Trainer = bench.trainer(again.algorithm, seed=1, updates=3)
    assert trainer.resume()
    await bench.train(trainer)
    inputs = again.inputs[-1]
    gaps = [inputs.logprobs[name] - inputs.teacher_logprobs[name] for name in inputs.teacher_logprobs]
    assert np.abs(np.concatenate(gaps)).max() > 1e-4  # the resumed policy itself would have no gap


async def test_divergence_in_the_reward_reaches_the_algorithm(bench: Bench) -> None:
    told = Told(objective=Objective(kl_coefficient=5.0, kl_in="reward"))
    await bench.train(bench.trainer(told.algorithm, updates=2))
    first, second = told.rewards[:4], told.rewards[4:]
    assert sorted(first) == pytest.approx([0, 0, 1, 1], abs=1e-4)  # of the reference itself
    assert min(second) < -1e-4


async def test_an_algorithm_with_a_sweep_is_trained_turn_by_turn(bench: Bench) -> None:
    told = Told(sweep=Sweep())
    bench.pool.put(*group_records("a"), *group_records("b"))
    (update,) = await bench.train(bench.trainer(told.algorithm, updates=1))
    assert dict(update.metrics)["optimizer_steps"] == 2  # turns, of which a single step would see both
    assert "carried_ratio_mean" in dict(update.metrics)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
async def test_whatever_is_asked_for_every_algorithm_resumes_where_it_was(bench: Bench, name: str) -> None:
    settings = {"plain_groups": "first_step"} if name == "rtpo" else {}
    algorithm = ALGORITHMS[name](**settings).build()
    await bench.train(bench.trainer(algorithm, updates=1))
    state = {key: tensor.clone() for key, tensor in bench.learner.policy.trainable_state().items()}
    trainer = bench.trainer(algorithm, seed=1, updates=1)
    assert trainer.resume()
    resumed = bench.learner.policy.trainable_state()
    assert all(torch.equal(state[key], resumed[key]) for key in state)


async def test_advantages_are_kept_within_the_algorithms_bound_and_counted_as_zero_before_they_are_whitened(
    bench: Bench,
) -> None:
    def assign(group: Group, inputs: Inputs) -> list[Credit]:
        alive = group.info.id == "a"
        steps = [step for trajectory in group.trajectories for step in trajectory.steps]
        return [Credit(step_id=s.id, advantages=broadcast(9.0 * alive, len(s.response_ids))) for s in steps]

    seen: list[float] = []
    algorithm = Algorithm(name="x", assign=assign, whiten="step", advantage_bound=0.5, objective=Objective())
    bench.pool.put(*group_records("a"), *group_records("b"))
    bench.watch = lambda batch: seen.extend(batch.advantages.tolist())
    (update,) = await bench.train(bench.trainer(algorithm, updates=1))
    assert dict(update.metrics)["zero_advantage_rate"] == 0.5
    assert set(seen) == {0.5, -0.5}
