"""OpenAI's fine-tuning files: JSONL of `{"messages": […], "tools": […]}`, one example per line. Read only.

An example becomes a trajectory that has ended, with one step for each assistant message that is to be learnt, which
is each whose `weight` is not 0. Ids come from the content, so importing a file twice changes nothing.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from stepwell.errors import InvalidRecord, InvalidRequest
from stepwell.pool.archive.conversation import Conversation, conversation_of
from stepwell.pool.archive.flaws import Flaws
from stepwell.pool.archive.imported import Renders, Said, content_id, step_of
from stepwell.pool.archive.jsonl import lines
from stepwell.types import Annotation, Record, Step, TrajectoryInfo


def read(path: Path, flaws: Flaws, renders: Renders) -> Iterator[Record]:
    """The records of each example: its trajectory, its steps, its end. Their time is that of the file."""
    written = path.stat().st_mtime
    for number, body in lines(path, dict[str, Any], flaws):
        try:
            records = _records(body, written, renders)
        except (ValueError, InvalidRecord, InvalidRequest) as error:
            flaws.add(path, number, error)
            continue
        yield from records


def _records(body: Mapping[str, Any], written: float, renders: Renders) -> list[Record]:
    conversation = conversation_of(body)
    known = {"messages": body["messages"], "tools": body.get("tools") or []}
    trajectory_id = content_id("import", msgspec.json.encode(known, order="deterministic"))
    info = TrajectoryInfo(id=trajectory_id, source="import", created_at=written)
    steps: list[Step] = []
    for place, message in enumerate(conversation.messages):
        if message.role == "assistant" and body["messages"][place].get("weight") != 0:
            asked = Conversation(conversation.messages[:place], conversation.tools)
            said = Said(id=f"{trajectory_id}-{len(steps)}", asked=asked, answer=message, created_at=written)
            steps.append(step_of(said, trajectory_id, len(steps), renders, steps[-1] if steps else None))
    if not steps:
        raise ValueError("no assistant message is to be learnt from")
    end = Annotation(
        id=f"{trajectory_id}-end",
        target="trajectory",
        target_id=trajectory_id,
        kind="end",
        name="terminated",
        created_at=written,
    )
    return [info, *steps, end]
