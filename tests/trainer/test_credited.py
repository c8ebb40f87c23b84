"""What the pool keeps of an update: every leased step once, with the credit that the loss had, or why it had none."""

from dataclasses import replace

import numpy as np
import pytest

from stepwell.algorithms import ALGORITHMS
from stepwell.algorithms.base import Algorithm, Inputs
from stepwell.algorithms.objective import Objective
from stepwell.errors import NotFound
from stepwell.trainer.collate import make_samples, token_weights, whiten
from stepwell.trainer.credited import credited
from stepwell.types import Credit, Group, GroupInfo, Step, Trajectory, TrajectoryInfo
from tests.trainer.test_loop import RUN, Bench, bench, group_records  # noqa: F401 - a fixture


def step(index: int, tokens: int = 2, **fields) -> Step:
    made = {"id": f"s{index}", "trajectory_id": "t", "index": index, "prompt_ids": [1, 2], "logprobs": [-1.0] * tokens}
    return Step(**made, response_ids=[3] * tokens, **fields)


def group_of(*steps: Step) -> Group:
    trajectory = Trajectory(info=TrajectoryInfo(id="t", group_id="g"), steps=steps, step_rewards=(0.0,) * len(steps))
    return Group(info=GroupInfo(id="g", task_id="task", size=1), trajectories=(trajectory,))


@pytest.mark.parametrize("aggregation", ["per_token", "per_step", "per_trajectory", "per_sequence"])
def test_advantage_and_weight_are_those_of_the_loss(aggregation) -> None:
    group = group_of(step(0, 2), step(1, 4), step(2, 6))
    credits = {f"s{i}": Credit(step_id=f"s{i}", advantages=np.arange(2 * i + 2.0) * i) for i in range(3)}
    samples = whiten(make_samples([group], credits, {}), "token")
    lines = credited([group], samples, aggregation)
    assert [line.advantage for line in lines] == [pytest.approx(s.advantages.mean()) for s in samples]
    weights = token_weights(samples, aggregation)
    assert [line.weight for line in lines] == [pytest.approx(weight.sum()) for weight in weights]
    assert sum(line.weight for line in lines) == pytest.approx(1)
    assert [(line.step_id, line.trajectory_id, line.group_id, line.index, line.tokens) for line in lines] == [
        ("s0", "t", "g", 0, 2),
        ("s1", "t", "g", 1, 4),
        ("s2", "t", "g", 2, 6),
    ]
    assert {line.left_out for line in lines} == {""}


def test_each_step_that_had_no_part_says_why() -> None:
    group = group_of(
        step(0, side="title"),
        step(1, finish_reason="abort"),
        step(2, token_source="text"),
        step(3, 0),
        step(4),
        step(5),
    )
    credits = {f"s{i}": Credit(step_id=f"s{i}", advantages=[1.0, 1.0], trained=i == 5) for i in (4, 5)}
    lines = credited([group], make_samples([group], credits, {}), "per_token")
    reasons = ["side call", "aborted", "tokens unknown", "no tokens", "algorithm", ""]
    assert [line.left_out for line in lines] == reasons
    assert {(line.advantage, line.weight) for line in lines[:5]} == {(0.0, 0.0)}


async def test_an_update_keeps_the_credit_of_every_step_that_it_leased(bench: Bench) -> None:  # noqa: F811
    bench.pool.put(*group_records("a"), *group_records("b"))
    await bench.train(bench.trainer(updates=2))
    lines = bench.pool.credit(RUN, 1)
    assert {line.step_id for line in lines} == {f"{g}-{t}-{s}" for g in "ab" for t in (0, 1) for s in (0, 1)}
    assert {line.group_id for line in lines} == {"a", "b"}
    assert sum(line.weight for line in lines) == pytest.approx(1)
    won = {line.advantage > 0 for line in lines if line.trajectory_id in ("a-0", "b-0")}
    assert won == {True}  # the first trajectory of a group earned more than the second
    assert len(bench.pool.credit(RUN, 2)) == 8


async def test_groups_that_the_algorithm_drops_are_kept_as_left_out(bench: Bench) -> None:  # noqa: F811
    algorithm = replace(ALGORITHMS["grpo"]().build(), regroup=lambda groups: groups[:1])
    bench.pool.put(*group_records("a"), *group_records("b"))
    await bench.train(bench.trainer(algorithm, updates=1))
    assert {(line.group_id, line.left_out) for line in bench.pool.credit(RUN, 1)} == {("a", ""), ("b", "algorithm")}


async def test_an_update_that_trained_on_nothing_says_so_of_each_step(bench: Bench) -> None:  # noqa: F811
    def assign(group: Group, inputs: Inputs) -> list[Credit]:
        steps = [step for trajectory in group.trajectories for step in trajectory.steps]
        return [Credit(step_id=s.id, advantages=np.zeros(len(s.response_ids)), trained=False) for s in steps]

    await bench.train(bench.trainer(Algorithm(name="nothing", assign=assign, objective=Objective()), updates=1))
    assert {line.left_out for line in bench.pool.credit(RUN, 1)} == {"algorithm"}


async def test_a_trainer_that_is_told_not_to_keeps_nothing(bench: Bench) -> None:  # noqa: F811
    await bench.train(bench.trainer(updates=1, record_credit=False))
    assert len(bench.pool.updates(RUN)) == 1
    with pytest.raises(NotFound):
        bench.pool.credit(RUN, 1)


async def test_who_sees_an_update_finds_its_credit(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    found: list[int] = []
    trainer = bench.trainer(updates=1)
    put = bench.diary.put
    monkeypatch.setattr(bench.diary, "put", lambda *r: (found.append(len(bench.pool.credit(RUN, 1))), put(*r)))
    await bench.train(trainer)
    assert found == [8]
