"""Entries to archive: odd ones by Hypothesis, and a small conversation that reads well."""

import json
from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from stepwell.pool.archive import Entry
from stepwell.rendering.messages import Message, Tool, ToolCall
from stepwell.rendering.wire import answer_to_json, message_to_json, tool_to_json
from stepwell.types import Annotation, Group, GroupInfo, Record, Step, Trajectory, TrajectoryInfo
from tests import strategies

TOOL = Tool(name="search", description="Finds things.", parameters={"type": "object", "properties": {}})
ASKED = Message(role="user", content="Where is the well? 井戸")


@st.composite
def entries(draw: st.DrawFn, group: GroupInfo | None = None, number: int = 0) -> Entry:
    """A trajectory with annotations of every kind, newer ones replacing older ones, in any order."""
    info = draw(strategies.trajectory_infos(group.id if group else None))
    info = TrajectoryInfo(**{**_fields(info), "id": f"{number}-{info.id}"[:200]})
    steps = draw(strategies.conversations(info.id, most=3))
    notes = draw(st.lists(_notes(info.id, steps), max_size=5, unique_by=lambda note: note.id))
    rewarded = any(note.kind == "reward" for note in notes)
    trajectory = Trajectory(
        info=info,
        steps=tuple(steps),
        step_rewards=tuple(draw(strategies.rewards) for _ in steps),
        reward=draw(strategies.rewards) if rewarded else None,
        reward_parts=(("answer", 0.5),) if rewarded else (),
        annotations=tuple(note for note in notes if note.kind in ("feedback", "event")),
    )
    return Entry(group=group, trajectory=trajectory, notes=tuple(notes))


def _fields(info: TrajectoryInfo) -> dict[str, object]:
    return {name: getattr(info, name) for name in TrajectoryInfo.__slots__}


def _notes(trajectory_id: str, steps: Sequence[Step]) -> st.SearchStrategy[Annotation]:
    targets = [("trajectory", trajectory_id), *(("step", step.id) for step in steps)]
    return st.sampled_from(targets).flatmap(_note)


def _note(target: tuple[str, str]) -> st.SearchStrategy[Annotation]:
    common = {"target": st.just(target[0]), "target_id": st.just(target[1]), "id": strategies.names}
    common |= {"text": strategies.stored_text, "created_at": strategies.times}
    said = st.builds(
        Annotation,
        kind=st.sampled_from(["feedback", "event"]),
        name=strategies.names,
        value=st.none() | strategies.rewards,
        **common,
    )
    if target[0] == "step":
        return said | strategies.reward_annotations(*target)
    end = st.builds(Annotation, kind=st.just("end"), name=st.sampled_from(["terminated", "failed"]), **common)
    return said | end | strategies.reward_annotations(*target)


@st.composite
def archives(draw: st.DrawFn) -> list[Entry]:
    """Some groups, one of them possibly empty, and trajectories of none."""
    found: list[Entry] = []
    for info in draw(st.lists(strategies.group_infos, max_size=2, unique_by=lambda group: group.id)):
        members = [draw(entries(info, len(found) + number)) for number in range(draw(st.integers(0, 2)))]
        found += members or [Entry(group=info)]
    found += [draw(entries(None, len(found) + number)) for number in range(draw(st.integers(0, 2)))]
    return found


def records_of(archived: Sequence[Entry]) -> list[Record]:
    """What a pool must be given to hold these entries."""
    records: list[Record] = []
    for entry in archived:
        if entry.group and entry.group not in records:
            records.append(entry.group)
        if entry.trajectory:
            records += [entry.trajectory.info, *entry.trajectory.steps, *entry.notes]
    return records


def chat_step(
    trajectory_id: str, messages: Sequence[Message], answer: Message, index: int = 0, tools: Sequence[Tool] = (), **more
) -> Step:
    """A step as a chat completion makes it; one token per message."""
    body = {"model": "m", "messages": [message_to_json(message) for message in messages]}
    body |= {"tools": [tool_to_json(tool) for tool in tools]} if tools else {}
    given = {
        "id": f"{trajectory_id}-{index}",
        "prompt_ids": [*range(1, len(messages) + 1)],
        "response_ids": [len(messages) + 1],
        "logprobs": np.array([-0.1], np.float32),
        "dialect": "chat",
        "request": json.dumps(body),
        "response": answer_to_json(answer),
        "model": "m",
    }
    return Step(trajectory_id=trajectory_id, index=index, **(given | more))


def searching(
    trajectory_id: str, reward: float | None = 1.0, group_id: str | None = None, end: str = "Yes"
) -> Trajectory:
    """A trajectory of two steps: a tool call, and the answer `end` to what the tool found."""
    call = Message(role="assistant", tool_calls=(ToolCall(id="c1", name="search", arguments='{"q": "well"}'),))
    found = Message(role="tool", content="In Abhaneri.", tool_call_id="c1")
    last = Message(role="assistant", content=end)
    steps = (
        chat_step(trajectory_id, [ASKED], call, tools=[TOOL]),
        chat_step(trajectory_id, [ASKED, call, found], last, 1, [TOOL], parent_id=f"{trajectory_id}-0"),
    )
    return Trajectory(
        info=TrajectoryInfo(id=trajectory_id, group_id=group_id, task_id="wells"),
        steps=steps,
        step_rewards=(0.0, reward or 0.0),
        reward=reward,
        status="terminated",
    )


def group_of(*trajectories: Trajectory, group_id: str = "g") -> Group:
    """A group of these."""
    info = GroupInfo(id=group_id, task_id="wells", size=max(len(trajectories), 1))
    return Group(info=info, trajectories=trajectories)
