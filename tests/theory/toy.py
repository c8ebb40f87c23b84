"""Finite-horizon decision processes with tables for policies, and their rollouts as the records that we train on.

A process has H turns, S states, A actions. Reward comes at the end only: `goal` of the state that the last action led
to. Everything is float64; whoever samples brings a seeded generator.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np

from stepwell.algorithms.rtpo import sibling_advantages
from stepwell.types import Group, GroupInfo, Step, Trajectory, TrajectoryInfo

Array = np.ndarray


@dataclass(frozen=True)
class Process:
    moves: Array
    """[H, S, A, S]: probability of the next state."""
    goal: Array
    """[S]: reward of ending there, 0..1."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """H, S, A."""
        turns, states, actions, _ = self.moves.shape
        return turns, states, actions


def random_process(seed: int, turns: int = 3, states: int = 3, actions: int = 3) -> Process:
    random = np.random.default_rng(seed)
    return Process(random.dirichlet([0.3] * states, (turns, states, actions)), random.random(states))


def chain(moves: list[list[list[int]]], goal: list[float]) -> Process:
    """A deterministic process: `moves[h][s][a]` is the next state."""
    return Process(np.eye(len(goal))[np.array(moves)], np.array(goal))


def softmax(logits: Array) -> Array:
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def evaluate(process: Process, policy: Array) -> tuple[Array, Array]:
    """V [H + 1, S] and Q [H, S, A] of a policy [H, S, A]."""
    turns, states, actions = process.shape
    v, q = np.zeros((turns + 1, states)), np.zeros((turns, states, actions))
    v[turns] = process.goal
    for h in reversed(range(turns)):
        q[h] = process.moves[h] @ v[h + 1]
        v[h] = (policy[h] * q[h]).sum(-1)
    return v, q


def optimum(process: Process) -> Array:
    """V* [H + 1, S], by backward induction."""
    turns, states, _ = process.shape
    v = np.zeros((turns + 1, states))
    v[turns] = process.goal
    for h in reversed(range(turns)):
        v[h] = (process.moves[h] @ v[h + 1]).max(-1)
    return v


def sibling_sets(actions: int, siblings: int) -> Array:
    """What `siblings` of them may do, every combination: [A^n, n]."""
    return np.array(list(product(range(actions), repeat=siblings)))


def expected_gradient(policy: Array, q: Array, siblings: int = 3, baseline: str = "mean") -> Array:
    """The gradient of one turn's logits [S, A] that siblings' advantages give on average, over all sets exactly.

    `policy` and `q` are those of the turn, [S, A].
    """
    sets = sibling_sets(policy.shape[1], siblings)
    return mean_gradient(policy, sets, set_advantages(q, sets, baseline))


def set_advantages(q: Array, sets: Array, baseline: str = "mean") -> Array:
    """Our advantages of each set in each state, [S, A^n, n]; linear in returns, so of their expectations."""
    return np.array([[sibling_advantages(row[chosen], baseline) for chosen in sets] for row in q])


def mean_gradient(policy: Array, sets: Array, advantages: Array) -> Array:
    """Σ_sets P(set)·(1/n)·Σ_j A_j·∇log π(u_j), [S, A]."""
    chances = policy[:, sets].prod(-1)  # [S, A^n]
    pull = (chances[..., None] * advantages) / sets.shape[1]
    chosen = np.eye(policy.shape[1])[sets]  # [A^n, n, A]
    return np.einsum("sxj,xja->sa", pull, chosen) - pull.sum((1, 2))[:, None] * policy


def train_turn(process: Process, logits: Array, turn: int, *, rate: float = 30.0, updates: int = 400) -> None:
    """Gradient ascent on one turn's logits in place, all other turns frozen."""
    _, q = evaluate(process, softmax(logits))
    sets = sibling_sets(logits.shape[-1], 3)
    advantages = set_advantages(q[turn], sets)
    for _ in range(updates):
        logits[turn] += rate * mean_gradient(softmax(logits[turn]), sets, advantages)


def play(process: Process, policy: Array, state: int, turn: int, random: np.random.Generator) -> list[tuple[int, int]]:
    """(state, action) from a turn on, and (last state, -1)."""
    turns, states, actions = process.shape
    seen = []
    for h in range(turn, turns):
        action = int(random.choice(actions, p=policy[h, state]))
        seen.append((state, action))
        state = int(random.choice(states, p=process.moves[h, state, action]))
    return [*seen, (state, -1)]


def sibling_group(
    process: Process, policy: Array, state: int, turn: int, siblings: int, random: np.random.Generator
) -> Group:
    """Siblings of one state, played to the end: a step per turn whose prompt is the turn and the state."""
    trajectories = []
    for number in range(siblings):
        seen = play(process, policy, state, turn, random)
        reward = float(random.random() < process.goal[seen[-1][0]])
        steps = tuple(
            Step(
                id=f"{number}-{h}",
                trajectory_id=str(number),
                index=h,
                prompt_ids=[h + 1, s],
                response_ids=[action],
                logprobs=[np.log(policy[h, s, action])],
            )
            for h, (s, action) in enumerate(seen[:-1], start=turn)
        )
        trajectories.append(
            Trajectory(
                info=TrajectoryInfo(id=str(number)),
                steps=steps,
                step_rewards=(0.0,) * (len(steps) - 1) + (reward,),
                reward=reward,
                status="terminated",
            )
        )
    info = GroupInfo(task_id="toy", size=siblings, origin_id="trunk", origin_index=turn)
    return Group(info=info, trajectories=tuple(trajectories))
