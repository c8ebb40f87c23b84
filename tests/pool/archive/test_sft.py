import dataclasses
import json
from pathlib import Path

import pyarrow.parquet as pq

from stepwell.pool import archive
from stepwell.pool.archive import Conversations
from stepwell.pool.archive.conversation import Conversation
from stepwell.rendering.messages import Message
from stepwell.types import Trajectory
from tests.pool.archive.builders import ASKED, TOOL, chat_step, searching


def _lines(tmp_path: Path, items: list[Trajectory], view: Conversations) -> tuple[list[dict], archive.Written]:
    path = tmp_path / "sft.jsonl"
    written = archive.write(path, items, view=view)
    return [json.loads(line) for line in path.read_text().splitlines()], written


def test_a_trajectory_is_one_conversation_in_openais_format(tmp_path: Path) -> None:
    (row,), written = _lines(tmp_path, [searching("t", reward=0.5)], Conversations())
    assert [message["role"] for message in row["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert row["messages"][1]["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"q": "well"}'}}
    ]
    assert row["messages"][2] == {"role": "tool", "content": "In Abhaneri.", "tool_call_id": "c1"}
    assert row["tools"][0]["function"]["name"] == TOOL.name
    assert (row["trajectory_id"], row["step_id"], row["reward"], row["model"]) == ("t", "t-1", 0.5, "m")
    assert written.skipped == ()


def test_parquet_holds_the_tools_as_json_text(tmp_path: Path) -> None:
    archive.write(tmp_path / "sft.parquet", [searching("t")], view=Conversations())
    (row,) = pq.read_table(tmp_path / "sft.parquet").to_pylist()
    assert json.loads(row["tools"])[0]["function"]["name"] == "search"
    assert row["messages"][0]["tool_calls"] is None


def test_each_step_can_be_a_conversation_of_its_own_with_its_own_reward(tmp_path: Path) -> None:
    rows, _ = _lines(tmp_path, [searching("t", reward=1.0)], Conversations(per="step"))
    assert [(row["step_id"], len(row["messages"]), row["reward"]) for row in rows] == [("t-0", 2, 0.0), ("t-1", 4, 1.0)]


def test_side_calls_and_abandoned_histories_are_not_in_the_conversation(tmp_path: Path) -> None:
    whole = searching("t")
    title = chat_step("t", [ASKED], Message(role="assistant", content="Wells"), 2, side="title")
    other = chat_step("t", [ASKED], Message(role="assistant", content="?"), 3, fork="client", prompt_ids=[77])
    more = dataclasses.replace(whole, steps=(*whole.steps, title, other), step_rewards=(0, 1, 0, 0))
    (row,), _ = _lines(tmp_path, [more], Conversations())
    assert row["step_id"] == "t-1"


def test_rewards_below_the_threshold_and_unknown_ones_are_left_out_and_counted(tmp_path: Path) -> None:
    items = [searching("good"), searching("bad", reward=0.0), searching("unknown", reward=None)]
    rows, written = _lines(tmp_path, items, Conversations(min_reward=0.5))
    assert [row["trajectory_id"] for row in rows] == ["good"]
    assert written.skipped == (("reward below the threshold", 2),)


def test_what_cannot_be_read_as_messages_is_counted(tmp_path: Path) -> None:
    whole = searching("t")
    foreign = dataclasses.replace(whole, steps=tuple(dataclasses.replace(s, dialect="messages") for s in whole.steps))
    rows, written = _lines(tmp_path, [foreign], Conversations())
    assert rows == []
    assert written.skipped == (("no messages of text", 1),)


def test_a_reader_of_other_dialects_can_be_given(tmp_path: Path) -> None:
    step = chat_step("t", [ASKED], Message(role="assistant", content="x"), dialect="mine")
    whole = dataclasses.replace(searching("t"), steps=(step,), step_rewards=(1.0,))
    view = Conversations(reads=lambda step: Conversation((ASKED,)))
    rows, _ = _lines(tmp_path, [whole], view)
    assert [message["content"] for message in rows[0]["messages"]] == [ASKED.content, "x"]
