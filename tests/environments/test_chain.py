"""The decision process in words: its exact values are what rollouts average to."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.environments.chain import Chain, ChainConfig, Process
from stepwell.errors import InvalidRequest, NotFound
from stepwell.rendering.messages import Message
from stepwell.rollout.env import Outcome
from tests.environments.laws import call, play, say


def random_policy(seed: int, process: Process) -> np.ndarray:
    turns, states, actions, _ = process.moves.shape
    return np.random.default_rng(seed).dirichlet([1.0] * actions, (turns, states))


def enumerated(process: Process, policy: np.ndarray, start: int) -> float:
    """Expected reward by summing over every way that an episode can go."""
    turns, states, actions, _ = process.moves.shape
    total = 0.0
    for path in product(range(actions), range(states), repeat=turns):
        chance, state = 1.0, start
        for turn in range(turns):
            action, following = path[2 * turn : 2 * turn + 2]
            chance *= policy[turn, state, action] * process.moves[turn, state, action, following]
            state = following
        total += chance * process.worth[state]
    return total


@given(st.integers(0, 1000))
@settings(max_examples=10, deadline=None)
def test_values_are_the_sum_over_all_paths(seed: int) -> None:
    process = Process.draw(seed, turns=3, states=3, actions=2)
    policy = random_policy(seed, process)
    v, q = process.values(policy)
    assert v[0] == pytest.approx([enumerated(process, policy, start) for start in range(3)])
    assert (policy * q).sum(-1) == pytest.approx(v[:-1])


@given(st.integers(0, 1000))
@settings(max_examples=10, deadline=None)
def test_no_policy_beats_the_best(seed: int) -> None:
    process = Process.draw(seed, turns=2, states=2, actions=2)
    best, _ = process.values(process.best())
    for choice in product(range(2), repeat=4):
        policy = np.eye(2)[np.array(choice).reshape(2, 2)]
        assert (process.values(policy)[0] <= best + 1e-12).all()


def rollout(tasks: Chain, task_id: str, policy: np.ndarray, seed: int) -> float:
    random = np.random.default_rng(seed)
    environment, state = tasks.make(), tasks.first_state(task_id)
    environment.reset(task_id, seed=seed)
    for turn in range(len(policy)):
        letter = "abc"[random.choice(policy.shape[2], p=policy[turn, state])]
        outcome = environment.step(say(letter))
        if not outcome.terminated:
            state = "abc".index(outcome.messages[0].content[-1])
    return outcome.reward


def test_rollouts_average_to_the_exact_value() -> None:
    tasks = ChainConfig(turns=3, states=3, actions=3).build()
    policy = random_policy(5, tasks.process)
    rewards = [rollout(tasks, "train-1", policy, seed) for seed in range(4000)]
    error = np.std(rewards) / len(rewards) ** 0.5
    assert np.mean(rewards) == pytest.approx(tasks.process.values(policy)[0][0, 1], abs=5 * error)


def test_transitions_come_as_often_as_the_table_says() -> None:
    process = Process.draw(0, turns=1, states=4, actions=2)
    luck = (np.arange(10_000) + 0.5) / 10_000
    counts = np.bincount([process.next_state(0, 1, 1, value) for value in luck], minlength=4)
    assert counts / 10_000 == pytest.approx(process.moves[0, 1, 1], abs=2e-4)
    assert process.next_state(0, 1, 1, 1.0) == 3


def test_the_agent_reads_turn_and_state_and_the_last_state_pays() -> None:
    tasks = ChainConfig(turns=2).build()
    opening = tasks.make().reset("train-4")
    assert opening == (Message(role="user", content="turn 1 of 2, state b"),)
    first, last = play(tasks, "train-4", [call("act", action="a"), say("B ")], seed=3)
    assert first.messages[0].content.startswith("turn 2 of 2, state ")
    assert last.reward in tasks.process.worth
    assert (last.terminated, last.messages) == (True, ())


@pytest.mark.parametrize(
    ("action", "invalid"), [(say("north"), 0), (call("act", action="d"), 1), (call("go", action="a"), 1)]
)
def test_what_is_no_action_is_told_so_and_the_turn_passes_in_that_state(action: Message, invalid: int) -> None:
    (outcome,) = play(ChainConfig(turns=2).build(), "train-0", [action])
    (message,) = outcome.messages
    assert message.content == "Error: name one action, a, b, c. turn 2 of 2, state a"
    assert outcome == Outcome(messages=(message,), invalid_calls=invalid)


def test_different_seeds_bring_different_luck_in_the_same_process() -> None:
    tasks = ChainConfig(turns=6).build()
    ends = {play(tasks, "train-0", [say("a")] * 6, seed=seed)[-1].reward for seed in range(30)}
    assert len(ends) > 1
    assert ends <= set(tasks.process.worth)


def test_tasks_begin_in_every_state() -> None:
    tasks = ChainConfig(states=3).build()
    assert [tasks.task_type(task) for task in tasks.tasks("train")[:4]] == ["state a", "state b", "state c", "state a"]
    with pytest.raises(InvalidRequest, match="train or test"):
        tasks.tasks("dev")
    with pytest.raises(NotFound, match="train-N"):
        tasks.make().reset("dev-0")
    with pytest.raises(InvalidRequest, match="reset"):
        tasks.make().step(say("a"))
