"""What teachers are told: of whom, in which ids, and where it stands."""

import math
from dataclasses import replace

import numpy as np
import pytest

from stepwell.algorithms.agentopsd import AgentOPSD
from stepwell.algorithms.base import Objective
from stepwell.algorithms.hindsight import Hindsight, HindsightForAll, transcript
from stepwell.algorithms.opsd import OPSD
from stepwell.algorithms.stepopsd import StepOPSD
from stepwell.config import load_config
from stepwell.errors import ConfigError, InvalidRecord
from stepwell.types import Group, Ids, Step, Trajectory
from tests.algorithms.builders import make_group, make_step, make_trajectory, with_step


def tokenize(text: str) -> Ids:
    """One id per character, far above those of the builders."""
    return np.array([1000 + ord(character) for character in text], np.int32)


def words(ids: Ids) -> str:
    """The text in ids, other ids as `.`."""
    return "".join(chr(i - 1000) if i >= 1000 else "." for i in ids)


LOSS = Objective()


def begun(at: float, trajectory: Trajectory) -> Trajectory:
    return replace(trajectory, info=replace(trajectory.info, created_at=at))


def mixed_group() -> Group:
    """Two failed and two correct trajectories, `first` begun before `second`."""
    return make_group(
        begun(1, make_trajectory("bad", [1], [0.0])),
        begun(3, make_trajectory("second", [2, 2], [0.0, 1.0])),
        begun(2, make_trajectory("first", [3], [1.0])),
        begun(4, make_trajectory("worse", [1], [0.0])),
    )


def recorded(index: int, prompt: list[int], response: list[int]) -> Step:
    return replace(make_step("t", index, len(response)), prompt_ids=prompt, response_ids=response)


def told_peers(config: Hindsight, group: Group) -> list[list[int] | None]:
    """The peer's ids in each trajectory's hint."""
    hints = config.build(LOSS).hints(group)
    return [next((part.tolist() for part in hint.parts if not isinstance(part, str)), None) for hint in hints]


def test_only_failed_trajectories_are_told_of_the_first_correct_one_as_begun() -> None:
    group = mixed_group()
    whole = transcript(group.trajectories[2]).tolist()
    assert told_peers(Hindsight(), group) == [whole, None, None, whole]
    turned = replace(group, trajectories=group.trajectories[::-1])
    assert told_peers(Hindsight(), turned) == [whole, None, None, whole]


def test_told_to_all_a_trajectory_is_never_its_own_peer() -> None:
    group = mixed_group()
    first, second = transcript(group.trajectories[2]).tolist(), transcript(group.trajectories[1]).tolist()
    assert told_peers(HindsightForAll(), group) == [first, first, second, first]
    alone = make_group(group.trajectories[2], group.trajectories[0])
    assert told_peers(HindsightForAll(), alone) == [None, first]


@pytest.mark.parametrize("rewards", [(1.0, 1.0), (0.0, 0.0)])
def test_without_a_mixed_group_nobody_is_told_of_a_peer(rewards) -> None:
    group = make_group(*(make_trajectory(f"t{n}", [1], [reward]) for n, reward in enumerate(rewards)))
    assert not any(Hindsight().build(LOSS).hints(group))


def test_what_counts_as_correct_is_set() -> None:
    group = make_group(make_trajectory("a", [1], [0.4]), make_trajectory("b", [1], [0.2]))
    assert told_peers(Hindsight(), group) == [None, None]
    assert told_peers(Hindsight(correct_above=0.3), group) == [None, [5]]


def test_a_transcript_has_every_answer_and_observation_once_in_the_recorded_ids() -> None:
    first = recorded(0, [1, 2, 3], [10, 11])
    title = replace(recorded(1, [9], [99]), side="title")
    appended = recorded(2, [1, 2, 3, 10, 11, 20, 21], [12])
    rebuilt = recorded(3, [1, 2, 7, 8], [13])
    known = make_trajectory("t", [], [], reward=1.0)
    trajectory = replace(known, steps=(first, title, appended, rebuilt), step_rewards=(0.0, 0.0, 0.0, 1.0))
    assert transcript(trajectory).tolist() == [10, 11, 20, 21, 12, 7, 8, 13]


def test_a_long_peer_loses_its_beginning_and_the_hint_says_so() -> None:
    good = with_step(make_trajectory("good", [4], [1.0]), 0, response_ids=[5, 6, 7, 8])
    group = make_group(make_trajectory("bad", [1], [0.0]), good)
    for budget, kept in ((3, [6, 7, 8]), (4, [5, 6, 7, 8]), (9, [5, 6, 7, 8])):
        hint = Hindsight(peer_tokens=budget).build(LOSS).hints(group)[0]
        assert hint.truncated == (budget < 4)
        assert [i for i in hint.ids(tokenize) if i < 1000] == kept


def test_the_outcome_alone_is_a_hint_for_everybody() -> None:
    hints = Hindsight(told="nothing", outcome=True).build(LOSS).hints(mixed_group())
    texts = [words(hint.ids(tokenize)) for hint in hints]
    assert ["final_correctness: correct\n" in text for text in texts] == [False, True, True, False]
    assert ["final_correctness: incorrect\n" in text for text in texts] == [True, False, False, True]
    assert texts[0] == "\n<hindsight>\nfinal_correctness: incorrect\n</hindsight>\n\n"


def test_nothing_to_tell_is_an_empty_hint_and_no_prompt_unless_asked_for() -> None:
    narrator = Hindsight(told="nothing").build(LOSS)
    group = mixed_group()
    assert [len(hint.ids(tokenize)) for hint in narrator.hints(group)] == [0, 0, 0, 0]
    assert narrator.prompts(group, tokenize, unhinted=False) == {}
    plain = narrator.prompts(group, tokenize, unhinted=True)
    steps = {step.id: step for t in group.trajectories for step in t.steps}
    assert plain.keys() == steps.keys()
    assert all(ids.tolist() == steps[name].prompt_ids.tolist() for name, ids in plain.items())


def test_the_hint_stands_right_before_the_answer_also_where_the_gateway_began_it() -> None:
    plain = make_step("bad", 0, prompt_ids=[1, 2, 3])
    forced = make_step("bad", 1, prompt_ids=[1, 2, 3, 4], prefill=2)
    known = make_trajectory("bad", [], [], reward=0.0)
    bad = replace(known, steps=(plain, forced), step_rewards=(0.0, 0.0))
    prompts = Hindsight(told="nothing", outcome=True).build(LOSS).prompts(make_group(bad), tokenize, unhinted=False)
    hint = Hindsight(told="nothing", outcome=True).build(LOSS).hints(make_group(bad))[0].ids(tokenize).tolist()
    assert prompts["bad-0"].tolist() == [1, 2, 3, *hint]
    assert prompts["bad-1"].tolist() == [1, 2, *hint, 3, 4]
    assert prompts["bad-0"].dtype == np.int32


def test_only_steps_that_can_be_trained_on_are_scored() -> None:
    steps = (make_step("t", 0), make_step("t", 1, finish_reason="abort"), make_step("t", 2, side="title"))
    known = make_trajectory("t", [], [], reward=0.0)
    group = make_group(replace(known, steps=steps, step_rewards=(0.0,) * 3))
    assert list(Hindsight(told="nothing").build(LOSS).prompts(group, tokenize, unhinted=True)) == ["t-0"]


def test_a_reference_answer_is_told_where_there_is_one(tmp_path) -> None:
    path = tmp_path / "golden.jsonl"
    path.write_text('{"task_id": "task", "answer": "Paris"}\n\n{"task_id": "other", "answer": "?", "more": 1}\n')
    group = mixed_group()
    narrator = Hindsight(told="golden", golden=path).build(LOSS)
    assert all("Paris" in words(hint.ids(tokenize)) for hint in narrator.hints(group))
    unknown = replace(group, info=replace(group.info, task_id="elsewhere"))
    assert not any(narrator.hints(unknown))


def test_reference_answers_that_cannot_be_read_are_a_config_error(tmp_path) -> None:
    broken = tmp_path / "golden.jsonl"
    broken.write_text('{"task_id": 7}\n')
    for path in (broken, tmp_path / "missing.jsonl"):
        with pytest.raises(ConfigError, match="reference answers"):
            Hindsight(told="golden", golden=path).build(LOSS)


@pytest.mark.parametrize("wrong", ["told=golden", "golden=answers.jsonl", "peer_tokens=0", "told=everything"])
def test_settings_that_make_no_sense_are_refused(wrong) -> None:
    with pytest.raises(ConfigError):
        load_config(Hindsight, None, [wrong])


@pytest.mark.parametrize("bad", [None, math.nan, math.inf])
def test_without_a_finite_reward_nobody_knows_who_was_correct(bad) -> None:
    group = make_group(make_trajectory("a", [1], [1.0]), make_trajectory("b", [1], [0.0], reward=bad))
    with pytest.raises(InvalidRecord):
        Hindsight().build(LOSS).hints(group)


@pytest.mark.parametrize("config", [StepOPSD, OPSD, AgentOPSD])
def test_rewards_that_the_divergence_is_taken_from_cannot_tell_who_was_correct(config) -> None:
    with pytest.raises(ConfigError, match="use kl_in: loss"):
        load_config(config, None, ["objective.kl_in=reward", "objective.kl_coefficient=0.1"]).build()
    assert load_config(config, None, ["objective.kl_coefficient=0.1"]).build().teacher is not None
