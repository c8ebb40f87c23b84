"""`stepwell pool savings`: what it promises of a group is what an update on that group computes."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stepwell.algorithms.objective import Objective
from stepwell.pool.store import SQLitePool
from stepwell.trainer.collate import make_samples
from stepwell.types import Annotation, Credit, GroupInfo, Record, Step, TrajectoryInfo
from tests.cli.processes import Finished
from tests.policy.tiny import random_ids, tiny_policy
from tests.trainer.builders import make_learner

SIZES = {"g1": (3, 20), "g2": (2, 5)}
"""Trajectories of each group, and tokens of the prompt that they share."""
STEPS = 3


def grown(trajectory_id: str, prompt: np.ndarray, seed: int) -> list[Step]:
    """Each prompt is the step before it and three tokens of observation."""
    steps = []
    for index in range(STEPS):
        response = random_ids(4, seed * 10 + index)
        names = {"id": f"{trajectory_id}-{index}", "trajectory_id": trajectory_id, "index": index}
        steps.append(Step(**names, prompt_ids=prompt, response_ids=response, logprobs=np.full(4, -3.0)))
        prompt = np.concatenate([prompt, response, random_ids(3, seed * 10 + 5 + index)])
    return steps


def a_group(name: str, size: int, prompt: int) -> list[Record]:
    records: list[Record] = [GroupInfo(id=name, task_id="t", size=size)]
    for number in range(size):
        one = f"{name}-{number}"
        records += [TrajectoryInfo(id=one, group_id=name), *grown(one, random_ids(prompt), number + 1)]
        records.append(Annotation.reward("trajectory", one, float(number)))
    return records


@pytest.fixture
def path(tmp_path: Path) -> Path:
    pool = SQLitePool.open(tmp_path / "pool.sqlite")
    for name, (size, prompt) in SIZES.items():
        pool.put(*a_group(name, size, prompt))
    side = {"index": STEPS, "prompt_ids": [1] * 30, "response_ids": [2], "logprobs": [-1]}
    pool.put(Step(id="title", trajectory_id="g1-0", side="title", **side))
    pool.put(TrajectoryInfo(id="lone"), *grown("lone", random_ids(9), 7))
    pool.put(TrajectoryInfo(id="empty"))
    pool.close()
    return tmp_path / "pool.sqlite"


@pytest.fixture
def saved(command: Callable[..., Finished], path: Path) -> Callable[..., dict]:
    def call(*arguments: str) -> dict:
        done = command("pool", "savings", "--json", *arguments, "--pool", str(path))
        assert done.code == 0, done.err
        shape: dict = json.loads(done.out)
        return shape

    return call


def tokens(size: int, prompt: int) -> tuple[int, int]:
    """Flat and merged tokens of `size` trajectories that share nothing but their prompt."""
    flat = [prompt + 7 * step + 4 for step in range(STEPS)]
    return size * sum(flat), prompt + size * (flat[-1] - prompt)


def test_groups_are_told_newest_first_with_one_without_trajectories_to_train_on_left_out(
    saved: Callable[..., dict],
) -> None:
    told = saved()
    figures = {"lone": tokens(1, 9), "g2": tokens(2, 5), "g1": tokens(3, 20)}
    assert [(one["group"], (one["flat_tokens"], one["tokens"])) for one in told["groups"]] == list(figures.items())
    total = told["total"]
    assert total["rows"] == 6 * STEPS
    assert [total["flat_tokens"], total["tokens"]] == [sum(column) for column in zip(*figures.values(), strict=True)]
    assert total["ratio"] == total["tokens"] / total["flat_tokens"]
    assert saved("--limit", "1") == {"total": total, "groups": told["groups"][:1]}


def test_filters_choose_trajectories_within_groups(saved: Callable[..., dict]) -> None:
    (one,) = saved("--where", "min_reward=1", "--where", "group_ids=[g1]")["groups"]
    assert (one["group"], one["flat_tokens"], one["tokens"]) == ("g1", *tokens(2, 20))


def test_what_people_rejected_is_not_counted(saved: Callable[..., dict], path: Path) -> None:
    pool = SQLitePool.open(path)
    pool.put(Annotation.verdict("trajectory", "g1-2", "reject"))
    pool.close()
    assert saved()["groups"][-1]["flat_tokens"] == tokens(2, 20)[0]


def test_the_table_has_the_same_figures(command: Callable[..., Finished], path: Path) -> None:
    done = command("pool", "savings", "--tree", "off", "--pool", str(path))
    assert done.code == 0, done.err
    rows = [line.replace("│", "").split() for line in done.out.splitlines() if "│" in line]
    assert rows[0] == ["lone", "3", "60", "60", "1.000"]
    assert rows[-1][0] == "total"


@pytest.mark.parametrize("tree", ["auto", "on", "off"])
@pytest.mark.parametrize("budget", [50, 4096])
def test_an_update_on_a_group_computes_what_was_promised_of_it(
    saved: Callable[..., dict], path: Path, tree: str, budget: int
) -> None:
    promised = {one["group"]: one for one in saved("--budget", str(budget), "--tree", tree)["groups"]}
    pool = SQLitePool.open(path, read_only=True)
    learner = make_learner(tiny_policy(), tree=tree, micro_batch_tokens=budget)
    for name in SIZES:
        group = pool.group(name)
        steps = [step for trajectory in group.trajectories for step in trajectory.steps]
        credits = {s.id: Credit(step_id=s.id, advantages=np.ones(len(s.response_ids))) for s in steps}
        metrics = learner.update(make_samples([group], credits, {}), Objective())
        assert metrics["tree_tokens"] == promised[name]["tokens"]
        assert metrics["tree_ratio"] == promised[name]["ratio"]
        assert metrics["trained_tokens"] == promised[name]["flat_tokens"]
    pool.close()
