import json
from pathlib import Path

import pytest

from stepwell.errors import InvalidRecord, InvalidRequest
from stepwell.pool import archive
from stepwell.rendering.messages import Message, ToolCall
from stepwell.rendering.renderer import Renderer
from stepwell.types import Annotation, Record, Step, TrajectoryInfo
from tests.fakes.models import tiny_renderer
from tests.pool.archive.builders import searching

RENDERER: Renderer = tiny_renderer()
LINE = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "bye"},
        {"role": "assistant", "content": "Bye."},
    ]
}


def _read(tmp_path: Path, *lines: object, **more) -> archive.Reading:
    path = tmp_path / "tuning.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return archive.read(path, renders=archive.retokenised(RENDERER), **more)


def test_each_assistant_message_becomes_a_step_of_text(tmp_path: Path) -> None:
    info, first, second, end = _read(tmp_path, LINE)
    assert isinstance(info, TrajectoryInfo)
    assert info.source == "import"
    assert [first.index, second.index] == [0, 1]
    assert first.token_source == "text"
    assert not first.trainable
    assert first.logprobs.tolist() == [0.0] * len(first.response_ids)
    assert RENDERER.decode(first.response_ids, skip_special=False) == "Hi.<|im_end|>"
    assert RENDERER.decode(second.prompt_ids).count("Hi.") == 1
    assert isinstance(end, Annotation)
    assert (end.kind, end.name, end.target_id) == ("end", "terminated", info.id)


def test_a_step_goes_on_from_the_one_before_only_where_the_ids_do(tmp_path: Path) -> None:
    steps = [record for record in _read(tmp_path, LINE) if isinstance(record, Step)]
    context = [*steps[0].prompt_ids, *steps[0].response_ids]
    extends = steps[1].prompt_ids[: len(context)].tolist() == context
    assert steps[1].parent_id == (steps[0].id if extends else "")


def test_importing_twice_gives_the_same_ids_whatever_the_order_of_keys(tmp_path: Path) -> None:
    shuffled = {"messages": [dict(reversed(message.items())) for message in LINE["messages"]]}
    first, second = [[record.id for record in _read(tmp_path, line)] for line in (LINE, shuffled)]
    assert first == second


def test_messages_of_weight_0_are_context_only(tmp_path: Path) -> None:
    messages = [dict(message) for message in LINE["messages"]]
    messages[2]["weight"] = 0
    steps = [record for record in _read(tmp_path, {"messages": messages}) if isinstance(record, Step)]
    assert [json.loads(step.response)["content"] for step in steps] == ["Bye."]


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[]",
        {"messages": [{"role": "user", "content": "alone"}]},
        {"messages": [{"role": "robot"}]},
        {"messages": [{"role": "user", "content": "\ud800"}, {"role": "assistant", "content": "x"}]},
    ],
)
def test_a_line_that_is_no_example_is_skipped_with_its_number_or_fatal(tmp_path: Path, line: object) -> None:
    reading = _read(tmp_path, LINE, line, on_error="skip", format="openai")
    assert len(list(reading)) == 4
    assert [flaw.line for flaw in reading.flaws.first] == [2]
    with pytest.raises(InvalidRecord, match="line 2"):
        list(_read(tmp_path, LINE, line))


def test_text_needs_something_that_gives_it_token_ids(tmp_path: Path) -> None:
    (tmp_path / "tuning.jsonl").write_text(json.dumps(LINE))
    with pytest.raises(InvalidRequest, match="name the model"):
        archive.read(tmp_path / "tuning.jsonl")


def test_our_own_conversations_are_such_a_file(tmp_path: Path) -> None:
    archive.write(tmp_path / "sft.jsonl", [searching("t")], view=archive.Conversations())
    reading = archive.read(tmp_path / "sft.jsonl", renders=archive.retokenised(tiny_renderer("hermes")))
    records: list[Record] = list(reading)
    assert reading.format == "openai"
    answers = [json.loads(record.response) for record in records if isinstance(record, Step)]
    assert answers[0]["tool_calls"][0]["function"]["name"] == "search"
    assert answers[1]["content"] == "Yes"


def test_reasoning_and_calls_are_written_as_the_model_writes_them() -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}<think></think><tool_call>"
    renders = archive.retokenised(tiny_renderer("hermes", template))
    call = ToolCall(id="c", name="f", arguments="{}")
    answer = Message(role="assistant", content="ok", reasoning="hm", tool_calls=(call,))
    _, ids = renders([Message(role="user", content="x")], [], answer)
    text = RENDERER.decode(ids, skip_special=False)
    assert text.startswith("<think>\nhm\n</think>\n\nok\n<tool_call>")
