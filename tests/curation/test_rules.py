import json
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.config import load_config
from stepwell.curation.rules import (
    AnyRule,
    Drift,
    Duplicates,
    Length,
    Logprobs,
    Repetition,
    Score,
    ToolCalls,
    Truncation,
    ZeroAdvantage,
)
from stepwell.curation.rules.repetition import repeated_share
from stepwell.curation.selection import Selection
from stepwell.errors import ConfigError
from stepwell.types import Step, Trajectory, TrajectoryInfo


def step(index: int = 0, response=(7, 8), said: str = "", **fields) -> Step:
    logprobs = fields.pop("logprobs", [-0.5] * len(response))
    ids = {"prompt_ids": [1, 2], "response_ids": list(response), "logprobs": logprobs}
    return Step(trajectory_id="t", index=index, response=said, **ids, **fields)


def trajectory(*steps: Step, reward: float | None = None, **fields) -> Trajectory:
    parts = () if reward is None else (("reward", reward),)
    return Trajectory(
        info=TrajectoryInfo(id="t"),
        steps=steps,
        step_rewards=(0.0,) * len(steps),
        reward=reward,
        reward_parts=fields.pop("reward_parts", parts),
        **fields,
    )


def answer(*calls: dict) -> str:
    return json.dumps({"role": "assistant", "tool_calls": [{"type": "function", "function": call} for call in calls]})


REQUEST = json.dumps({"tools": [{"type": "function", "function": {"name": "search"}}]})
GOOD = {"name": "search", "arguments": '{"q": "x"}'}

CASES = [
    (Truncation(), trajectory(step(finish_reason="length")), "truncation"),
    (Truncation(), trajectory(step(), status="truncated"), ""),
    (Truncation(episodes=True), trajectory(step(), status="truncated"), "truncation"),
    (Truncation(), trajectory(step(finish_reason="length", side="title")), ""),
    (Length(max_response=2), trajectory(step()), ""),
    (Length(max_response=1), trajectory(step()), "response length"),
    (Length(min_response=3), trajectory(step()), "response length"),
    (Length(max_context=3), trajectory(step()), "context length"),
    (Drift(), trajectory(step(), step(1, fork="template")), "drift"),
    (Drift(max_steps=1), trajectory(step(), step(1, fork="template")), ""),
    (Drift(), trajectory(step(fork="client")), ""),
    (Logprobs(), trajectory(step(token_source="text")), "no log-probs"),
    (Logprobs(), trajectory(step(logprobs=[0.0, 0.0])), "no log-probs"),
    (Logprobs(), trajectory(step(response=[7], logprobs=[0.0])), ""),
    (Logprobs(), trajectory(step(response=[])), ""),
    (Repetition(length=2, min_tokens=6), trajectory(step(response=[1, 2] * 3)), "repetition"),
    (Repetition(length=2, min_tokens=7), trajectory(step(response=[1, 2] * 3)), ""),
    (ToolCalls(), trajectory(step(response=[7], request=REQUEST, said=answer(GOOD))), ""),
    (ToolCalls(), trajectory(step(response=[7], said=answer({**GOOD, "arguments": "{"}))), "invalid tool calls"),
    (ToolCalls(), trajectory(step(response=[7], said=answer({**GOOD, "arguments": "[]"}))), "invalid tool calls"),
    (
        ToolCalls(),
        trajectory(step(response=[7], request=REQUEST, said=answer({**GOOD, "name": "rm"}))),
        "invalid tool calls",
    ),
    (ToolCalls(max_invalid=1), trajectory(step(response=[7], said=answer({**GOOD, "arguments": ""}))), ""),
    (ToolCalls(), trajectory(step(said="no JSON \ud800")), ""),
    (Score(part="judge", min=0.5), trajectory(step(), reward_parts=(("judge", 0.4),)), "judge"),
    (Score(part="judge", min=0.5), trajectory(step(), reward_parts=(("judge", 0.5),)), ""),
    (Score(part="judge", max=0.5), trajectory(step(), reward_parts=(("judge", 0.6),)), "judge"),
    (Score(part="judge"), trajectory(step()), "no judge"),
    (Score(part="judge", missing=True), trajectory(step()), ""),
]


@pytest.mark.parametrize(("rule", "of", "reason"), CASES, ids=lambda value: repr(value)[:60])
def test_a_rule_refuses_what_it_is_about_and_nothing_else(rule: AnyRule, of: Trajectory, reason: str) -> None:
    assert rule.refused([of]) == ({0: reason} if reason else {})


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 5))
def test_the_repeated_share_counts_runs_that_came_before(ids: list[int], length: int) -> None:
    runs = [tuple(ids[start : start + length]) for start in range(len(ids) - length + 1)]
    before = sum(run in runs[:place] for place, run in enumerate(runs))
    assert repeated_share(np.array(ids, np.int32), length) == pytest.approx(before / len(runs) if runs else 0.0)


def test_of_duplicates_the_first_stays() -> None:
    a, b = trajectory(step(response=[1, 2]), step(1, response=[3])), trajectory(step(response=[1]), step(1, [2, 3]))
    assert Duplicates().refused([a, b, a, a]) == {2: "duplicate", 3: "duplicate"}
    assert Duplicates().refused([trajectory(), trajectory()]) == {}


def test_a_group_has_zero_advantage_only_if_all_its_rewards_are_the_same() -> None:
    same, other = [trajectory(reward=1.0), trajectory(reward=1.0)], trajectory(reward=0.9)
    assert ZeroAdvantage().refused(same) == {0: "zero advantage", 1: "zero advantage"}
    assert ZeroAdvantage().refused([*same, other]) == {}
    assert ZeroAdvantage(tolerance=0.2).refused([*same, other]).keys() == {0, 1, 2}
    assert ZeroAdvantage().refused(same[:1]) == {}


def test_rules_see_what_those_before_them_left() -> None:
    good, copy, cut = (trajectory(step(response=ids), reward=1.0) for ids in ([1], [1], [2]))
    cut = trajectory(step(response=[2], finish_reason="length"), reward=0.0)
    rules = (Truncation(), Duplicates(), ZeroAdvantage())
    assert Selection(rules=rules[:2]).sift([good, copy, cut]) == ["", "duplicate", "truncation"]
    assert Selection(rules=rules).sift([good, copy, cut]) == ["", "duplicate", "truncation"]
    assert Selection(rules=rules[::2]).sift([good, copy, cut]) == ["zero advantage", "zero advantage", "truncation"]


def test_a_selection_is_read_from_yaml_and_a_mistake_in_a_rule_is_named(tmp_path) -> None:
    file = tmp_path / "selection.yaml"
    file.write_text("min_reward: 0.5\nrules:\n- use: repetition\n  max_share: 0.3\n- use: zero_advantage\n")
    assert load_config(Selection, file).rules == (Repetition(max_share=0.3), ZeroAdvantage())
    file.write_text("rules:\n- use: repetitive\n")
    with pytest.raises(ConfigError, match="repetitive"):
        load_config(Selection, file)


@pytest.mark.parametrize("rule", get_args(get_args(AnyRule)[0]))
def test_a_selection_that_is_written_reads_back_the_same(rule: type) -> None:
    minimal = {"score": {"part": "judge"}}.get(rule.model_fields["use"].default, {})
    selection = Selection(min_reward=0.5, tags=("a",), rules=(rule(**minimal),))
    assert Selection.model_validate(json.loads(json.dumps(selection.written()))) == selection
    assert Selection().written() == {}
