"""Search question answering: what each move of the agent earns."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from stepwell.environments.corpora import wikipedia_corpus
from stepwell.environments.search_qa import SearchQA, SearchQAConfig
from stepwell.errors import InvalidRequest, MissingDependency
from stepwell.rendering.messages import Message
from stepwell.scoring.answers import contains_answer
from tests.environments.laws import call, hotpot_file, play, say

SEARCH = call("search", query="capital of Quell")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    return hotpot_file(tmp_path)


def _task_set(data: Path, **settings: object) -> SearchQA:
    return SearchQA(SearchQAConfig.model_validate({"dataset": "hotpot", "path": data, **settings}))


def _rewards(data: Path, *script: Message, **settings: object) -> dict[str, float]:
    outcome = play(_task_set(data, **settings), "row-0", script)[-1]
    assert outcome.terminated
    return dict(outcome.reward_parts)


def test_a_search_shows_the_best_passage(data: Path) -> None:
    (outcome,) = play(_task_set(data), "row-0", [SEARCH])
    (message,) = outcome.messages
    assert message.role == "tool"
    assert message.tool_call_id == SEARCH.tool_calls[0].id
    assert message.content == "Marn: Marn is the capital of Quell. It lies on the river Oss."
    assert outcome.reward_parts == ()


def test_passages_and_words_bound_what_is_shown(data: Path) -> None:
    (outcome,) = play(_task_set(data, passages=2, passage_words=4), "row-0", [SEARCH])
    assert [len(line.split()) for line in outcome.messages[0].content.splitlines()] == [5, 5]


def test_a_search_without_a_hit_says_so(data: Path) -> None:
    (outcome,) = play(_task_set(data), "row-0", [call("search", query="zebra")])
    assert outcome.messages[0].content == "No result."


def test_a_right_answer_earns_the_answer_part(data: Path) -> None:
    assert _rewards(data, SEARCH, call("answer", text="the Marn.")) == {"answer": 1.0, "format": 0.0}
    assert _rewards(data, SEARCH, call("answer", text="Tibb")) == {"answer": 0.0, "format": 0.0}


def test_the_metric_and_the_weights_are_settings(data: Path) -> None:
    half_right = call("answer", text="Marn city")
    assert _rewards(data, half_right)["answer"] == 0.0
    assert _rewards(data, half_right, answer_metric="f1")["answer"] == pytest.approx(2 / 3)
    assert _rewards(data, call("answer", text="Marn"), answer_weight=2.0)["answer"] == 2.0


def test_the_format_part_needs_a_search_of_an_earlier_turn(data: Path) -> None:
    answer = call("answer", text="Tibb")
    at_once = Message(role="assistant", tool_calls=SEARCH.tool_calls + answer.tool_calls)
    refused = call("search", text="wrong key")
    assert _rewards(data, SEARCH, answer, format_weight=0.1)["format"] == 0.1
    assert _rewards(data, answer, format_weight=0.1)["format"] == 0.0
    assert _rewards(data, at_once, format_weight=0.1)["format"] == 0.0
    assert _rewards(data, refused, answer, format_weight=0.1)["format"] == 0.0


def test_a_message_without_a_call_ends_the_episode_with_nothing(data: Path) -> None:
    assert _rewards(data, SEARCH, say("Marn"), format_weight=0.1) == {"answer": 0.0, "format": 0.0}


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (call("browse", url="x"), "Error: there is no tool 'browse'; use search or answer."),
        (call("search", text="x"), "Error: search takes one text called query."),
        (call("answer", text=7), "Error: answer takes one text called text."),
        (call("search", query="x", k=3), "Error: search takes one text called query."),
    ],
)
def test_a_wrong_call_is_answered_with_an_error_and_the_episode_goes_on(data: Path, action: Message, text: str) -> None:
    wrong, _, last = play(_task_set(data), "row-0", [action, SEARCH, call("answer", text="Marn")])
    assert [message.content for message in wrong.messages] == [text]
    assert last.terminated
    assert last.reward == 1.0


def test_the_turn_limit_truncates_with_nothing(data: Path) -> None:
    first, second = play(_task_set(data, max_turns=2), "row-0", [SEARCH, SEARCH])
    assert not first.truncated
    assert second.truncated
    assert dict(second.reward_parts) == {"answer": 0.0, "format": 0.0}


def test_an_answer_in_the_last_turn_still_counts(data: Path) -> None:
    last = play(_task_set(data, max_turns=2), "row-0", [SEARCH, call("answer", text="Marn")])[-1]
    assert (last.terminated, last.truncated, last.reward) == (True, False, 1.0)


def test_no_step_without_a_running_episode(data: Path) -> None:
    environment = _task_set(data).make()
    with pytest.raises(InvalidRequest, match="reset"):
        environment.step(SEARCH)
    environment.reset("row-0")
    environment.step(say("done"))
    with pytest.raises(InvalidRequest, match="reset"):
        environment.step(SEARCH)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_demonstrations_are_earlier_turns_that_search_and_answer(data: Path, count: int) -> None:
    opening = _task_set(data, demonstrations=count).make().reset("row-0")
    assert [message.role for message in opening] == [
        "system",
        *["user", "assistant", "tool", "assistant"] * count,
        "user",
    ]
    calls = [made for message in opening for made in message.tool_calls]
    assert [made.name for made in calls] == ["search", "answer"] * count
    assert len({made.id for made in calls}) == 2 * count
    assert opening[-1].content == "Question: What is the capital of Quell (0)?"


def test_the_test_split_depends_on_the_question_alone(data: Path, tmp_path: Path) -> None:
    more = tmp_path / "more"
    more.mkdir()
    small, large = _task_set(data), _task_set(hotpot_file(more, count=40))
    assert set(small.tasks("test")) == set(large.tasks("test")) & {f"row-{number}" for number in range(12)}
    with pytest.raises(InvalidRequest, match="train or test"):
        small.tasks("dev")


@pytest.mark.parametrize(
    "settings",
    [{"dataset": "nq", "path": "x"}, {"dataset": "boolq", "answerable_only": True}],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="dataset"):
        SearchQAConfig.model_validate(settings)


def test_answerable_questions_can_be_answered_from_their_own_search() -> None:
    try:
        golds = {question.id: question.answers for question in wikipedia_corpus("nq").questions}
    except MissingDependency as error:
        pytest.skip(f"no package index: {error}")
    tasks = SearchQA(SearchQAConfig(dataset="nq", answerable_only=True))
    assert (len(tasks.tasks("train")), len(tasks.tasks("test"))) == (267, 71)
    environment = tasks.make()
    for task_id in tasks.tasks("test"):
        question = environment.reset(task_id)[-1].content.removeprefix("Question: ")
        shown = environment.step(call("search", query=question)).messages[0].content
        assert contains_answer(shown, golds[task_id])
