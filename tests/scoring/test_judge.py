"""The judge is a real server on loopback: what it is told, how its words are read, and what happens if it fails."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stepwell.engines.upstream import Busy
from stepwell.errors import EngineError, EngineTimeout, InvalidRequest
from stepwell.rendering.messages import Message, ToolCall
from stepwell.rendering.wire import answer_to_json
from stepwell.scoring.asking import waiting
from stepwell.scoring.base import Score, Unusable
from stepwell.scoring.scorers.judge import JudgeConfig
from stepwell.scoring.transcript import transcript
from stepwell.types import Trajectory, TrajectoryInfo
from tests.fakes.judges import FakeJudge
from tests.fakes.servers import free_port, serving
from tests.scoring.worlds import references, step, trajectory

Ask = Callable[..., Any]


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STEPWELL_JUDGE_KEY", raising=False)


@pytest.fixture
def served() -> Iterator[Callable[[FakeJudge], str]]:
    with ExitStack() as stack:
        yield lambda judge: stack.enter_context(serving(judge.app()))


async def ask(url: str, of: Trajectory, **settings: Any) -> Score | None:
    scorer = JudgeConfig.model_validate({"urls": [url], "model": "judge", "backoff": 0, **settings}).build()
    try:
        return await scorer.score(of)
    finally:
        await scorer.aclose()


async def test_a_score_on_the_scale_becomes_a_reward_between_nothing_and_one_with_the_words_as_its_reason(
    served,
) -> None:
    judge = FakeJudge(lambda prompt: "Score: 2? No.\n**Score:** 7.5/10")
    said = await ask(served(judge), trajectory("The Seine.", question="Name a river."))
    assert said == Score(parts={"judge": 0.75}, text="Score: 2? No.\n**Score:** 7.5/10", asked=judge.prompts[0])
    (body,) = judge.asked
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("judge", 0, 1024)
    assert "Name a river." in judge.prompts[0]
    assert "The Seine." in judge.prompts[0]


async def test_the_prompt_is_the_templates_and_what_agents_write_is_no_template(served, tmp_path: Path) -> None:
    judge = FakeJudge(lambda prompt: "grade=4")
    of = trajectory("first", "{reference} {x}", question="Really?", task_id="a")
    settings = {"prompt": "{task}|{answer}|{reference}|{other}", "references": references(tmp_path, a=["one", "two"])}
    said = await ask(served(judge), of, pattern=r"grade=(\d)", scale=[1, 5], part="grade", **settings)
    assert said is not None
    assert said.parts == {"grade": 0.75}
    assert judge.prompts == ["Really?|{reference} {x}|one\ntwo|{other}"]


async def test_a_judge_may_be_held_to_a_schema(served) -> None:
    judge = FakeJudge(lambda prompt: json.dumps({"reason": "fine", "score": 10}))
    said = await ask(served(judge), trajectory("a"), form="json")
    assert said == Score(parts={"judge": 1.0}, text="fine", asked=judge.prompts[0])
    assert judge.asked[0]["response_format"]["json_schema"]["schema"]["required"] == ["reason", "score"]


@pytest.mark.parametrize(
    ("words", "form", "says"),
    [
        ("I like it", "line", "no score that `pattern` finds"),
        ("Score: 11", "line", "from 0 to 10"),
        ("Score: 7", "json", "no JSON"),
        ('{"reason": "x"}', "json", "no JSON"),
        ('{"score": 1e999}', "json", "no JSON|from 0 to 10"),
    ],
)
async def test_words_that_hold_no_score_on_the_scale_are_an_error_and_not_asked_for_again(
    served, words, form, says
) -> None:
    judge = FakeJudge(lambda prompt: words)
    with pytest.raises(EngineError, match=says):
        await ask(served(judge), trajectory("a"), form=form)
    assert len(judge.asked) == 1


async def test_a_judge_that_is_busy_is_asked_again_and_one_that_stays_away_is_an_error(served) -> None:
    answers = iter([429, 503, "Score: 5"])
    judge = FakeJudge(lambda prompt: next(answers))
    said = await ask(served(judge), trajectory("a"))
    assert said is not None
    assert said.parts == {"judge": 0.5}
    gone = FakeJudge(lambda prompt: 503)
    with pytest.raises(EngineError, match="503"):
        await ask(served(gone), trajectory("a"), retries=2)
    assert len(gone.asked) == 3
    with pytest.raises(EngineError, match="cannot be reached"):
        await ask(f"http://127.0.0.1:{free_port()}", trajectory("a"), retries=1)


@pytest.mark.parametrize(
    ("status", "says"),
    [(401, "STEPWELL_JUDGE_KEY"), (403, "STEPWELL_JUDGE_KEY"), (404, "has it this `model`"), (410, "410")],
)
async def test_a_judge_that_refuses_whatever_it_is_asked_is_unusable_at_once(served, status: int, says: str) -> None:
    judge = FakeJudge(lambda prompt: status)
    with pytest.raises(Unusable, match=says):
        await ask(served(judge), trajectory("a"))
    assert len(judge.asked) == 1


async def test_asked_again_another_server_of_the_judge_may_answer(served) -> None:
    gone, well = FakeJudge(lambda prompt: 503), FakeJudge(lambda prompt: "Score: 5")
    urls = [served(gone), served(well)]
    for order in (urls, urls[::-1]):
        said = await ask("", trajectory("a"), urls=order, retries=1)
        assert said == Score(parts={"judge": 0.5}, text="Score: 5", asked=well.prompts[0])
    assert (len(gone.asked), len(well.asked)) == (1, 2)


def test_who_is_busy_is_left_alone_for_as_long_as_it_says() -> None:
    assert waiting(0.0, Busy("", 7.0)) == 7.0
    assert waiting(0.0, Busy("", None)) == waiting(0.0, EngineError("")) == 0.0
    assert 50 <= waiting(100.0, Busy("", 7.0)) <= 150
    assert waiting(0.0, Busy("", float("inf"))) == 600.0


@asynccontextmanager
async def endless(chunk: bytes, pause: float) -> AsyncIterator[str]:
    """A server that begins an answer and never ends it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
        try:
            while True:
                writer.write(chunk)
                await writer.drain()
                await asyncio.sleep(pause)
        except ConnectionError:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_an_answer_without_an_end_is_given_up_by_its_size_or_by_its_time() -> None:
    async with endless(b" " * 2**20, 0) as url:
        with pytest.raises(EngineError, match=r"more than the 16,777,216 bytes"):
            await ask(url, trajectory("a"), retries=0)
    async with endless(b" ", 0.01) as url:
        with pytest.raises(EngineTimeout, match=r"did not finish its answer within 0.3 s"):
            await ask(url, trajectory("a"), retries=0, timeout=0.3, idle_timeout=60)


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("\n" * 200_000 + "Score: 5", 0.5),
        ("score " * 50_000 + "\nScore: 5", 0.5),
        ("Score\n\n7", 0.7),
        ("  > - Score = 3", 0.3),
        ("Score: 10" + " and more" * 100_000 + "\n**Score**: 4/10", 0.4),
    ],
    ids=["lines", "words", "below", "quoted", "long"],
)
async def test_the_score_is_found_however_long_the_judge_talks_before_it(served, words: str, value: float) -> None:
    said = await ask(served(FakeJudge(lambda prompt: words)), trajectory("a"))
    assert said is not None
    assert said.parts == {"judge": value}


async def test_nothing_but_line_breaks_is_no_score(served) -> None:
    with pytest.raises(EngineError, match="gave no score"):
        await ask(served(FakeJudge(lambda prompt: "\n" * 200_000)), trajectory("a"))


async def test_what_a_judge_refuses_is_not_asked_again(served) -> None:
    judge = FakeJudge(lambda prompt: 400)
    with pytest.raises(InvalidRequest):
        await ask(served(judge), trajectory("a"))
    assert len(judge.asked) == 1


async def test_the_key_of_the_settings_or_the_environment_is_sent_and_not_shown(served, monkeypatch) -> None:
    judge = FakeJudge(lambda prompt: "Score: 5")
    url = served(judge)
    await ask(url, trajectory("a"))
    monkeypatch.setenv("STEPWELL_JUDGE_KEY", "sk-2")
    await ask(url, trajectory("a"), api_key="sk-1")
    await ask(url, trajectory("a"))
    assert judge.keys == [None, "Bearer sk-1", "Bearer sk-2"]
    assert "sk-1" not in JudgeConfig(urls=("http://x",), model="m", api_key="sk-1").model_dump_json()


async def test_without_an_answer_or_a_reference_nothing_is_asked(served, tmp_path: Path) -> None:
    judge = FakeJudge(lambda prompt: "Score: 5")
    url = served(judge)
    assert await ask(url, trajectory()) is None
    gold = references(tmp_path, a="x")
    assert await ask(url, trajectory("a", task_id="b"), prompt="{answer}{reference}", references=gold) is None
    assert judge.asked == []


def told(request: object, task_id: str = "") -> tuple[str, str]:
    made = step("t", "the answer", request=request if isinstance(request, str) else json.dumps(request))
    read = transcript(Trajectory(info=TrajectoryInfo(id="t", task_id=task_id), steps=(made,), step_rewards=(0.0,)))
    return read.task, read.conversation


def test_conversations_of_every_dialect_are_read() -> None:
    system, user = {"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}
    parts = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
    call = {"type": "function_call", "name": "f", "arguments": "{}"}
    calls = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]}
    whole = ("Hi", "system: Be kind.\n\nuser: Hi")
    assert told({"messages": [system, user]}) == whole
    assert told({"system": "Be kind.", "messages": [parts]}) == whole
    assert told({"system": [{"type": "text", "text": "Be kind."}], "messages": [parts]}) == whole
    assert told({"instructions": "Be kind.", "input": "Hi"}) == whole
    assert told({"prompt": "Hi"}) == ("Hi", "user: Hi")
    assert told({"input": [user, call]}) == ("Hi", f"user: Hi\n\nfunction_call: {json.dumps(call)}")
    assert told({"messages": [user, calls]}) == ("Hi", "user: Hi\n\nassistant: → f({})")


@pytest.mark.parametrize("request_", ["", "no", "[]", "7", "{}", '{"messages": 7}', '{"messages": [7, null]}'])
def test_what_is_no_conversation_is_shown_as_far_as_it_can_be(request_: str) -> None:
    task, _ = told(request_, task_id="task 1")
    assert task in ("task 1", "7")


def responses(*calls: tuple[str, dict[str, Any], str | Message]) -> Trajectory:
    """A trajectory of calls to OpenAI's responses: (id, body, answer)."""
    answers = [Message(role="assistant", content=said) if isinstance(said, str) else said for *_, said in calls]
    steps = tuple(
        step("t", "", index, id=name, dialect="responses", request=json.dumps(body), response=answer_to_json(answer))
        for index, ((name, body, _), answer) in enumerate(zip(calls, answers, strict=True))
    )
    return Trajectory(info=TrajectoryInfo(id="t"), steps=steps, step_rewards=(0.0,) * len(steps))


def test_a_conversation_that_calls_only_refer_to_is_told_from_its_beginning() -> None:
    called = Message(role="assistant", tool_calls=(ToolCall(id="c", name="f", arguments="{}"),))
    output = {"type": "function_call_output", "call_id": "c", "output": "4"}
    read = transcript(
        responses(
            ("step-1", {"instructions": "Be kind.", "input": "Two and two?"}, called),
            ("step-x", {"input": "Something else"}, "elsewhere"),
            ("step-2", {"previous_response_id": "resp_step-1", "input": [output]}, "Four."),
            ("step-3", {"previous_response_id": "resp_step-2", "instructions": "Be brief.", "input": "Why?"}, "So."),
        )
    )
    assert read.task == "Two and two?"
    assert read.conversation.split("\n\n") == [
        "system: Be brief.",
        "user: Two and two?",
        "assistant: → f({})",
        f"function_call_output: {json.dumps(output)}",
        "assistant: Four.",
        "user: Why?",
    ]


def test_items_that_calls_only_refer_to_are_told_once_for_each_answer() -> None:
    items = [{"role": "user", "content": "Hi"}, {"type": "item_reference", "id": "msg_step-1"}]
    again = {"input": [*items, {"id": "fc_step-1_2"}, {"role": "user", "content": "And?"}, {"id": "msg_other"}]}
    read = transcript(responses(("step-1", {"input": "Hi"}, "Hello."), ("step-2", again, "Well.")))
    assert read.conversation == 'user: Hi\n\nassistant: Hello.\n\nuser: And?\n\nuser: {"id": "msg_other"}'


@pytest.mark.parametrize("previous", ["resp_foreign", "resp_step-2", "step", 7, ["x"]])
def test_a_call_that_goes_on_from_what_has_a_foreign_id_goes_on_from_the_call_before(previous: object) -> None:
    read = transcript(
        responses(
            ("step-1", {"input": "Hi"}, "Hello."), ("step-2", {"previous_response_id": previous, "input": "So?"}, "X")
        )
    )
    assert read.conversation == "user: Hi\n\nassistant: Hello.\n\nuser: So?"
    alone = transcript(responses(("step-2", {"previous_response_id": previous, "input": "So?"}, "X")))
    assert alone.conversation == "user: So?"
