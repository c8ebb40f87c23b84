"""What is played is what the library would have recorded: ids, log-probabilities, rewards, siblings."""

from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest

from experiments.collecting import Collecting, batches
from experiments.model import WarmUp, Words, warmed_up
from experiments.play import Player
from stepwell.algorithms.base import Algorithm
from stepwell.algorithms.grpo import GRPO
from stepwell.algorithms.rtpo import RTPO
from stepwell.environments.cipher import CipherConfig
from stepwell.trainer.scoring import Scored, response_logprobs

ENVIRONMENT = CipherConfig(turns=3, letters=2)
WORDS = Words()


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def player(*, shown: int = 0) -> Player:
    policy = warmed_up(ENVIRONMENT, WarmUp(updates=2), "head", 0)
    return Player(policy, ENVIRONMENT.build(), WORDS, seed=0, shown=shown)


def tasks() -> Iterator[str]:
    return (f"train-{number}" for number in range(1000))


def groups(algorithm: Algorithm, count: int, own: Player, **settings: object) -> list[list[object]]:
    config = Collecting.model_validate({"steps": 12, "group_size": 2, "trunks": 2, **settings})
    return list(islice(batches(config, algorithm, own, tasks(), ENVIRONMENT.turns), count))


@pytest.mark.parametrize("shown", [0, 2])
def test_recorded_logprobs_are_those_of_the_trainer(shown: int) -> None:
    own = player(shown=shown)
    (batch,) = groups(GRPO().build(), 1, own)
    steps = [step for group in batch for trajectory in group.trajectories for step in trajectory.steps]
    rows = [Scored(step.prompt_ids, step.response_ids, 1.0) for step in steps]
    policy = warmed_up(ENVIRONMENT, WarmUp(updates=2), "head", 0)
    recomputed = np.concatenate(response_logprobs(policy, rows, 4096, "off"))
    assert recomputed == pytest.approx(np.concatenate([step.logprobs for step in steps]), abs=1e-5)


def test_prompts_show_as_many_turns_before_as_they_are_to() -> None:
    episode = (own := player(shown=1)).begin("train-0")
    own.play([episode])
    first, second, third = (step.prompt_ids for step in episode.steps)
    (asked, answer), last = episode.history[:2], episode.history[4]
    assert first.tolist() == asked.tolist()
    assert second.tolist() == [*asked, *answer, *episode.history[2]]
    assert third.tolist() == [*episode.history[2], *episode.history[3], *last]


def test_rewards_are_what_the_answers_earn_and_everything_is_counted() -> None:
    own, cipher = player(), ENVIRONMENT.build()
    episodes = [own.begin(f"train-{number}") for number in range(20)]
    own.play(episodes)
    for episode in episodes:
        said = [WORDS.text(step.response_ids) for step in episode.steps]
        right = [text == cipher.secret(word) for text, word in zip(said, cipher.words(episode.task), strict=True)]
        assert sum(episode.rewards) == pytest.approx(np.mean(right))
    tokens = sum(len(step.response_ids) for episode in episodes for step in episode.steps)
    assert (own.spent.steps, own.spent.tokens) == (60, tokens)


def test_siblings_take_a_turn_anew_in_the_state_of_their_trunk_last_turn_first() -> None:
    plan = RTPO(skip_alike=False).build()
    turns = [[group.info.origin_index for group in batch] for batch in groups(plan, 3, player())]
    assert turns == [[2, 2], [1, 1], [0, 0]]
    (batch,) = groups(RTPO(skip_alike=False, order="forward").build(), 1, player())
    for group in batch:
        steps = [trajectory.steps for trajectory in group.trajectories]
        assert [[step.index for step in own] for own in steps] == [[0, 1, 2]] * 2
        assert len({own[0].prompt_ids.tobytes() for own in steps}) == 1


def test_stale_batches_are_those_that_were_played_so_many_updates_before() -> None:
    fresh, late = player(), player()
    played = batches(Collecting(steps=12, group_size=2), GRPO().build(), fresh, tasks(), 3)
    stale = batches(Collecting(steps=12, group_size=2, staleness=2), GRPO().build(), late, tasks(), 3)
    first = [t.info.id for group in next(played) for t in group.trajectories]
    assert [t.info.id for group in next(stale) for t in group.trajectories] == first
    assert late.spent.steps == 3 * fresh.spent.steps


def test_flattened_contexts_are_the_whole_history() -> None:
    plan = GRPO().build()
    (exact,), (flat,) = groups(plan, 1, player()), groups(plan, 1, player(), context="flattened")
    for one, other in zip(exact[0].trajectories[0].steps, flat[0].trajectories[0].steps, strict=True):
        assert other.prompt_ids[len(other.prompt_ids) - len(one.prompt_ids) :].tolist() == one.prompt_ids.tolist()
        assert (len(other.prompt_ids) > len(one.prompt_ids)) == (one.index > 0)
        assert other.response_ids.tolist() == one.response_ids.tolist()
