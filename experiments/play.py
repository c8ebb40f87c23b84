"""Episodes of the cipher, many at once and turn by turn, as the very records that a pool would hold.

No gateway and no pool lie between the policy and its environment: so a run takes seconds, and is the same each time.
What is trained on are the library's `Step`s with the ids and log-probabilities that were sampled.

Shape letters: B rows of L tokens, K key/value heads, D head size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.model import Words
from stepwell.environments.cipher import Cipher, CipherEnvironment
from stepwell.policy.attention import Scores, causal_attention
from stepwell.policy.model import Policy
from stepwell.rendering.messages import Message
from stepwell.types import Floats, Group, GroupInfo, Ids, Sampling, Step, Trajectory, TrajectoryInfo


@dataclass(slots=True)
class Spent:
    """What a run has cost so far."""

    tokens: int = 0
    """Response tokens, of all that was sampled for training."""
    steps: int = 0
    """Of the environment."""


@dataclass(slots=True)
class Episode:
    """One episode under way."""

    id: str
    task: str
    game: CipherEnvironment
    observation: str
    first: int = 0
    """The turn that it begins at: more than 0 in a fork."""
    history: list[Ids] = field(default_factory=list)
    """The prompt of each turn so far, without what came before it, and the answer to it, by turns."""
    steps: list[Step] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    """What followed each of its own steps."""
    states: list[tuple[object, str]] = field(default_factory=list)
    """Before each of its own steps: the game's snapshot, and what was told."""
    over: bool = False

    @property
    def trajectory(self) -> Trajectory:
        """As a pool would give it."""
        reward = sum(self.rewards)
        info = TrajectoryInfo(id=self.id, task_id=self.task, source="rollout", created_at=0.0)
        return Trajectory(
            info=info,
            steps=tuple(self.steps),
            step_rewards=tuple(self.rewards),
            reward=reward,
            reward_parts=(("right", reward),),
            status="terminated",
        )


class Player:
    """Plays with a policy as it is at the time."""

    def __init__(self, policy: Policy, tasks: Cipher, words: Words, *, seed: int, shown: int = 0) -> None:
        """`shown`: how many earlier turns a prompt shows."""
        self.spent = Spent()
        self._policy = policy
        self._tasks = tasks
        self._words = words
        self._shown = shown
        self._generator = torch.Generator().manual_seed(seed)
        self._made = 0

    def begin(self, task: str) -> Episode:
        """A fresh episode."""
        game = self._tasks.make()
        return Episode(self._id(), task, game, game.reset(task)[-1].content)

    def fork(self, origin: Episode, turn: int) -> Episode:
        """An episode that goes on from where `origin` was before its step at `turn`."""
        game = self._tasks.make()
        state, told = origin.states[turn - origin.first]
        game.restore(state)
        return Episode(self._id(), origin.task, game, told, turn, origin.history[: 2 * turn])

    def play(self, episodes: Sequence[Episode], turns: int | None = None) -> None:
        """Play all to their end, or so many turns."""
        with torch.inference_mode(), self._policy.reading() as version:
            while turns is None or turns > 0:
                going = [episode for episode in episodes if not episode.over]
                if not going:
                    return
                self._turn(going, version)
                turns = None if turns is None else turns - 1

    def group(self, episodes: Sequence[Episode], origin: Episode | None = None) -> Group:
        """Episodes of one task, to be compared; siblings, if they were forked from `origin`."""
        first = episodes[0]
        info = GroupInfo(
            id=f"group-{first.id}",
            task_id=first.task,
            size=len(episodes),
            origin_id=origin.id if origin else "",
            origin_index=first.first if origin else None,
            created_at=0.0,
        )
        return Group(info=info, trajectories=tuple(episode.trajectory for episode in episodes))

    def _id(self) -> str:
        self._made += 1
        return f"{self._made:08d}"

    def _turn(self, episodes: Sequence[Episode], version: int) -> None:
        limit = self._tasks.config.letters + 1
        prompts = [self._prompt(episode) for episode in episodes]
        answers = sample(self._policy, prompts, limit, self._words.end, self._generator)
        for episode, prompt, (ids, logprobs) in zip(episodes, prompts, answers, strict=True):
            step = Step(
                id=f"{episode.id}-{episode.first + len(episode.steps)}",
                trajectory_id=episode.id,
                index=episode.first + len(episode.steps),
                prompt_ids=prompt,
                response_ids=ids,
                logprobs=logprobs,
                policy_version_min=version,
                policy_version_max=version,
                finish_reason="stop" if ids[-1] == self._words.end else "length",
                sampling=Sampling(max_tokens=limit),
                created_at=0.0,
            )
            self._act(episode, step)
            self.spent.tokens += len(ids)
            self.spent.steps += 1

    def _prompt(self, episode: Episode) -> Ids:
        asked = self._words.asked(episode.observation)
        past = episode.history[len(episode.history) - 2 * self._shown :] if self._shown else []
        return np.concatenate([*past, asked])

    def _act(self, episode: Episode, step: Step) -> None:
        answer = step.response_ids
        if step.finish_reason == "length":
            answer = np.append(answer, np.int32(self._words.end))
        episode.states.append((episode.game.snapshot(), episode.observation))
        episode.history += [self._words.asked(episode.observation), answer]
        outcome = episode.game.step(Message(role="assistant", content=self._words.text(step.response_ids)))
        episode.steps.append(step)
        episode.rewards.append(outcome.reward)
        episode.over = outcome.terminated
        if not episode.over:
            episode.observation = outcome.messages[-1].content


def sample(
    policy: Policy, prompts: Sequence[Ids], limit: int, end: int, generator: torch.Generator
) -> list[tuple[Ids, Floats]]:
    """A response to each prompt at temperature 1: ids up to `end`, at most `limit`, and their log-probabilities."""
    found: dict[int, tuple[Ids, Floats]] = {}
    for length in sorted({len(prompt) for prompt in prompts}):
        rows = [number for number, prompt in enumerate(prompts) if len(prompt) == length]
        ids, logprobs = _sample_rows(policy, np.stack([prompts[row] for row in rows]), limit, end, generator)
        for row, own, scores in zip(rows, ids, logprobs, strict=True):
            ended = np.flatnonzero(own == end)
            size = int(ended[0]) + 1 if len(ended) else limit
            found[row] = own[:size], scores[:size]
    return [found[number] for number in range(len(prompts))]


def _sample_rows(
    policy: Policy, prompts: np.ndarray[Any, Any], limit: int, end: int, generator: torch.Generator
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Ids int32 and log-probabilities float32, [B, up to `limit`], of prompts of equal length [B, L]."""
    new, start, plan = torch.from_numpy(prompts.astype(np.int64)), 0, _Rows(len(prompts))
    ids: list[Tensor] = []
    scores: list[Tensor] = []
    going = torch.ones(len(prompts), dtype=torch.bool)
    while len(ids) < limit and going.any():
        positions = torch.arange(start, start + new.shape[1]).repeat(len(new))
        hidden = policy.hidden(new.flatten(), positions, plan).view(*new.shape, -1)
        logp = policy.logits(hidden[:, -1]).log_softmax(-1)
        token = torch.multinomial(logp.exp(), 1, generator=generator)
        ids.append(token)
        scores.append(logp.gather(1, token))
        going &= token[:, 0] != end
        start, new = start + new.shape[1], token
    return torch.cat(ids, 1).numpy().astype(np.int32), torch.cat(scores, 1).numpy().astype(np.float32)


class _Rows:
    """Attention plan of B sequences of equal length, whose keys and values it keeps."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._past: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:
        """See `AttentionPlan`; the packed tokens are the rows, one after the other."""
        q, k, v = (x.view(len(x), self._count, -1, x.shape[-1]).transpose(0, 1) for x in (query, key, value))
        if layer in self._past:
            k, v = (torch.cat([old, new], 2) for old, new in zip(self._past[layer], (k, v), strict=True))
        self._past[layer] = k, v
        return causal_attention(q, k, v, scores).transpose(0, 1).flatten(1, 2)
