"""Each scorer says what its settings promise, of the final answer of the agent's own work."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.config import component_config
from stepwell.errors import ConfigError, EnvironmentFailed
from stepwell.rendering.messages import ToolCall
from stepwell.scoring.answers import f1, normalise
from stepwell.scoring.base import Score, ScorerConfig, final_answer
from stepwell.scoring.matcher import Matchers
from stepwell.scoring.references import References
from stepwell.scoring.rescore import name_of
from stepwell.scoring.scorers import SCORERS
from stepwell.scoring.scorers.callable import CallableConfig
from stepwell.scoring.scorers.judge import JudgeConfig
from stepwell.types import Annotation, Trajectory, TrajectoryInfo
from tests.scoring.worlds import answered, references, step, trajectory

HERE = "tests.scoring.functions"
WORDS = st.lists(st.sampled_from(["marn", "oss", "the", "river", "7"]), max_size=6).map(" ".join)


def configured(use: str, **settings: Any) -> ScorerConfig:
    return component_config(SCORERS, ScorerConfig, {"use": use, **settings})


async def score(of: Trajectory, use: str, **settings: Any) -> Score | None:
    scorer = configured(use, **settings).build()
    try:
        return await scorer.score(of)
    finally:
        await scorer.aclose()


async def parts(of: Trajectory, use: str, **settings: Any) -> dict[str, float] | None:
    said = await score(of, use, **settings)
    return None if said is None else dict(said.parts)


def with_steps(*steps: dict[str, Any]) -> Trajectory:
    made = tuple(step("t", "", index, **fields) for index, fields in enumerate(steps))
    return Trajectory(info=TrajectoryInfo(id="t"), steps=made, step_rewards=(0.0,) * len(made))


def test_the_final_answer_is_the_last_of_the_agents_own_work() -> None:
    assert final_answer(trajectory("first", "last")) == "last"
    assert final_answer(with_steps(answered("mine"), answered("A title", side="title"))) == "mine"
    assert final_answer(with_steps({"response": "plain text of an import"})) == "plain text of an import"
    assert final_answer(with_steps(answered("", [ToolCall(id="c", name="f", arguments="{}")]))) == ""
    assert final_answer(with_steps(answered("known"), {"response": ""})) is None
    assert final_answer(with_steps()) is None


@pytest.mark.parametrize(
    ("answer", "settings", "value"),
    [
        ("I say yes", {"pattern": "yes"}, 1.0),
        ("I say no", {"pattern": "yes"}, 0.0),
        ("I say no", {"pattern": "yes", "missing": -1}, -1.0),
        ("score 3, no, score 4.5", {"pattern": r"score (\S+)"}, 4.5),
    ],
)
async def test_a_pattern_counts_where_it_is_found_last(answer: str, settings: dict[str, Any], value: float) -> None:
    assert await parts(trajectory(answer), "regex", **settings) == {"regex": value}


async def test_a_pattern_that_is_missing_may_say_nothing_and_a_group_that_is_no_number_is_an_error() -> None:
    assert await parts(trajectory("no"), "regex", pattern="yes", missing=None) is None
    assert await parts(with_steps(), "regex", pattern="yes") is None
    with pytest.raises(ValueError, match="'high', which is no number"):
        await parts(trajectory("score high"), "regex", pattern=r"score (\w+)")


async def test_answers_are_compared_with_the_references_of_their_task(tmp_path: Path) -> None:
    gold = references(tmp_path, a="Paris", b=["The Seine", "Seine river"])
    assert await parts(trajectory("paris.", task_id="a"), "exact_match", references=gold) == {"exact_match": 1.0}
    assert await parts(trajectory("Rome", task_id="a"), "exact_match", references=gold) == {"exact_match": 0.0}
    assert await parts(trajectory("river", task_id="b"), "f1", references=gold, part="answer") == {"answer": 2 / 3}
    assert await parts(trajectory("paris", task_id="unknown"), "exact_match", references=gold) is None


def test_references_of_one_task_add_up_and_numbers_are_read_as_text(tmp_path: Path) -> None:
    path = tmp_path / "gold.jsonl"
    path.write_text('{"task_id": "t", "answer": 7, "source": "x"}\n\n{"task_id": "t", "answers": ["a", 0.5]}\n')
    read = References.read(path)
    assert read.of(trajectory(task_id="t")) == ("7", "a", "0.5")
    assert read.of(trajectory(task_id="u")) == ()


@pytest.mark.parametrize("line", ["{}", '{"task_id": "t"}', "no", '{"task_id": 1, "answer": "x"}', "\udcff"])
def test_a_line_that_is_no_reference_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "gold.jsonl"
    path.write_text('{"task_id": "t", "answer": "x"}\n' + line, errors="surrogateescape")
    with pytest.raises(ConfigError, match="line 2"):
        configured("f1", references=path).build()
    with pytest.raises(ConfigError, match="cannot read the references"):
        configured("f1", references=tmp_path / "nowhere").build()


@given(WORDS, WORDS)
def test_f1_is_symmetric_between_nothing_and_one_and_one_for_the_same_words(one: str, other: str) -> None:
    assert f1(one, [other]) == f1(other, [one])
    assert 0 <= f1(one, [other]) <= 1
    assert f1(one, [one]) == float(bool(normalise(one)))


def feedback(name: str, value: float | None, target: str = "") -> Annotation:
    kind = "step" if target else "trajectory"
    return Annotation(target=kind, target_id=target or "t", kind="feedback", name=name, value=value)


async def test_the_newest_feedback_on_each_thing_is_its_reward() -> None:
    notes = [
        feedback("thumbs", 1, "t.0"),
        feedback("thumbs", -1, "t.0"),
        feedback("score", 5.0),
        feedback("score", 4.0),
        feedback("comment", None),
        Annotation(target="trajectory", target_id="t", kind="event", name="thumbs", value=1),
    ]
    said = await score(trajectory("a", notes=notes), "feedback", rule={"score_range": [1, 5], "reward_range": [0, 1]})
    assert said == Score(parts={"feedback": 0.75}, steps={"t.0": {"feedback": -1.0}})


async def test_without_feedback_that_is_worth_something_nothing_is_said() -> None:
    assert await score(trajectory("a"), "feedback") is None
    assert await score(trajectory("a", notes=[feedback("edit", None)]), "feedback") is None
    assert await parts(trajectory("a", notes=[feedback("edit", None)]), "feedback", rule={"edit": -0.5}) == {
        "feedback": -0.5
    }


async def test_a_function_gives_a_number_parts_rewards_of_steps_or_nothing() -> None:
    of = trajectory("abc", "de")
    assert await parts(of, "callable", function=f"{HERE}:length", part="size") == {"size": 2.0}
    assert await parts(of, "callable", function=f"{HERE}:several") == {"short": 1.0, "polite": 0.5}
    assert await parts(of, "callable", function=f"{HERE}:later") == {"callable": 0.25}
    assert await parts(of, "callable", function=f"{HERE}:silent") is None
    said = await score(of, "callable", function=f"{Path(__file__).with_name('functions.py')}:of_steps")
    assert said is not None
    assert said.steps == {"t.0": {"even": 1.0}, "t.1": {"even": 0.0}}
    with pytest.raises(TypeError, match="not str"):
        await score(of, "callable", function=f"{HERE}:text")


@pytest.mark.parametrize("function", ["nowhere:f", f"{HERE}:nothing", f"{HERE}:number", "length", "nowhere.py:f"])
def test_a_function_that_is_none_is_refused_before_anything_is_scored(function: str) -> None:
    with pytest.raises(ConfigError, match=r"names nothing|cannot import|not a function"):
        configured("callable", function=function).build()


async def test_a_combination_is_the_weighted_sum_and_keeps_its_parts() -> None:
    several = {"use": "callable", "function": f"{HERE}:several"}
    summands = [
        {"weight": 2, "scorer": {"use": "regex", "pattern": "a", "part": "polite"}},
        {"scorer": several},
        {
            "weight": 0.5,
            "scorer": {
                "use": "combined",
                "parts": [{"scorer": {"use": "callable", "function": f"{HERE}:of_steps"}}],
            },
        },
        {"weight": 9, "scorer": {"use": "feedback"}},
    ]
    said = await score(trajectory("a"), "combined", parts=summands)
    assert said == Score(parts={"polite": 2.5, "short": 1.0}, steps={"t.0": {"even": 0.5}}, text="by index")
    assert await score(trajectory("a"), "combined", parts=summands[3:]) is None


async def test_a_combination_of_which_one_fails_fails() -> None:
    failing = [
        {"scorer": {"use": "regex", "pattern": "a"}},
        {"scorer": {"use": "callable", "function": f"{HERE}:text"}},
    ]
    with pytest.raises(TypeError):
        await score(trajectory("a"), "combined", parts=failing)


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"use": "regexp", "pattern": "a"}, "did you mean 'regex'"),
        ({"use": "regex", "patern": "a"}, "did you mean 'pattern'"),
        ({"use": "regex", "pattern": "("}, "not a regular expression"),
        ({"use": "combined", "parts": [{"scorer": {"use": "nothing"}}]}, "nothing"),
        ({"use": "combined", "parts": []}, "at least 1 item"),
        ({"use": "regex", "pattern": "a", "part": "a/b"}, "part"),
        ({"use": "feedback", "rule": {"score_range": [5, 1]}}, "lower to a higher"),
        ({"use": "judge", "urls": ["http://x"], "model": "m", "prompt": "hm"}, "judges nothing"),
        ({"use": "judge", "urls": ["http://x"], "model": "m", "prompt": "{answer} {reference}"}, "belong together"),
        ({"use": "judge", "urls": ["http://x"], "model": "m", "pattern": "score"}, "group"),
        ({"use": "judge", "urls": ["http://x"], "model": "m", "scale": [1, 1]}, "lower to a higher"),
        ({"use": "judge", "urls": ["http://x"], "model": "m", "scale": [-1e308, 1e308]}, "lower to a higher"),
        ({"use": "judge", "urls": ["http://x"], "model": "m", "scale": [float("-inf"), float("inf")]}, "finite"),
        ({"use": "feedback", "rule": {"score_range": [float("-inf"), float("inf")]}}, "finite"),
        ({"use": "regex", "pattern": "a{99999999999}"}, "not a regular expression"),
        ({"use": "combined", "parts": [{"scorer": {"use": "regx", "pattern": "a"}}]}, "did you mean 'regex'"),
        ({"use": "combined", "parts": [{"scorer": {"use": "regex", "patern": "a"}}]}, "did you mean 'pattern'"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused_in_words(section: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        component_config(SCORERS, ScorerConfig, section)


@pytest.mark.parametrize(
    ("section", "says"),
    [
        (
            {"use": "judge", "urls": ["http://x"], "model": "m", "prompt": "hm", "api_key": "sk-1"},
            "judge: a prompt without {answer} judges nothing",
        ),
        (
            {"use": "judge", "urls": ["ftp://x"], "model": "m"},
            "judge: urls.0: String should match pattern '^https?://' (got 'ftp://x')",
        ),
        (
            {"use": "combined", "parts": [{"scorer": {"use": "judge", "urls": ["http://x"], "api_key": "sk-1"}}]},
            "combined: parts.0.scorer: judge: model: Field required",
        ),
    ],
    ids=str,
)
def test_each_mistake_is_one_line_that_names_its_place_and_shows_no_key(section: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        component_config(SCORERS, ScorerConfig, section)
    assert str(raised.value) == says


def test_a_combination_has_no_part_of_its_own() -> None:
    with pytest.raises(ConfigError, match="name those"):
        configured("combined", part="x", parts=[{"scorer": {"use": "feedback"}}]).build()


async def test_a_scorer_of_somebodys_own_is_named_by_its_file() -> None:
    use = f"{Path(__file__).with_name('own.py')}:Always"
    assert await parts(trajectory("a"), use, value=0.5) == {"score": 0.5}
    assert name_of(configured(use, value=0.5)).startswith("Always-")


async def test_a_combination_may_hold_a_scorer_of_somebodys_own() -> None:
    own = f"{Path(__file__).with_name('own.py')}:Always"
    summands = [{"weight": 2, "scorer": {"use": own, "value": 0.5}}, {"scorer": {"use": "regex", "pattern": "a"}}]
    assert await parts(trajectory("a"), "combined", parts=summands) == {"score": 1.0, "regex": 1.0}
    other = [{"weight": 2, "scorer": {"use": own, "value": 0.25}}, summands[1]]
    assert name_of(configured("combined", parts=summands)) != name_of(configured("combined", parts=other))


def test_a_key_is_no_part_of_the_name_of_a_rescoring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STEPWELL_JUDGE_KEY", raising=False)
    settings = {"urls": ("http://x",), "model": "m"}
    judge = {"use": "judge", **settings}
    without = [name_of(JudgeConfig(**settings)), name_of(configured("combined", parts=[{"scorer": judge}]))]
    monkeypatch.setenv("STEPWELL_JUDGE_KEY", "sk-1")
    assert [name_of(JudgeConfig(**settings)), name_of(configured("combined", parts=[{"scorer": judge}]))] == without
    assert name_of(JudgeConfig(**settings, retries=1)) != without[0]
    assert name_of(JudgeConfig(**settings), replaces=True) != without[0]


@pytest.mark.parametrize("said", [True, 7, np.float32(0.5), np.int64(3), np.array(0.25)], ids=repr)
async def test_a_function_may_give_a_number_of_any_library(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{HERE}.said", said)
    scorer = CallableConfig(function=f"{HERE}:given", part="n").build()
    assert await scorer.score(trajectory("a")) == Score(parts={"n": float(said)})
    monkeypatch.setattr(f"{HERE}.said", {"m": said})
    assert await scorer.score(trajectory("a")) == Score(parts={"m": float(said)})


async def test_a_pattern_that_never_ends_is_given_up_while_everything_else_goes_on() -> None:
    scorer = configured("regex", pattern="(?:(?:.|x)+)+\0", seconds=0.5).build()
    stuck = asyncio.create_task(scorer.score(trajectory("x" * 100)))
    rounds = 0
    while not stuck.done():
        await asyncio.sleep(0.01)
        rounds += 1
    assert rounds > 10  # the event loop was not held up
    with pytest.raises(EnvironmentFailed, match=r"search took longer than 0.5 s"):
        stuck.result()
    assert await scorer.score(trajectory("x\0")) == Score(parts={"regex": 1.0})
    await scorer.aclose()


@pytest.mark.parametrize(
    ("pattern", "text", "number"),
    [
        ("a", "ba", 1.0),
        ("a", "b", None),
        (r"(\d)", "1 2", 2.0),
        ("(a)?b", "b", "took no part"),
        ("(.+)", "z" * 10**6, "zz"),
    ],
)
async def test_a_number_is_found_or_missing_or_what_is_there_instead_is_told(pattern: str, text: str, number) -> None:
    matchers = Matchers(20)
    if isinstance(number, str):
        with pytest.raises(ConfigError, match=number):
            await matchers.number(pattern, text)
    else:
        assert await matchers.number(pattern, text) == number
    await matchers.aclose()
