"""Stored trajectories with answers, and scorers that only tests need."""

import json
from collections.abc import Sequence
from pathlib import Path

from stepwell.rendering.messages import Message, ToolCall
from stepwell.rendering.wire import answer_to_json
from stepwell.types import Annotation, Record, Step, Trajectory, TrajectoryInfo
from tests.pool.builders import make_step


def answered(text: str, calls: Sequence[ToolCall] = (), **fields) -> dict[str, str]:
    """What a step holds whose answer has this text."""
    return {"response": answer_to_json(Message(role="assistant", content=text, tool_calls=tuple(calls)))} | fields


def asked(text: str) -> dict[str, str]:
    """What a step holds that was asked this."""
    return {"dialect": "chat", "request": json.dumps({"messages": [{"role": "user", "content": text}]})}


def step(trajectory_id: str, text: str, index: int = 0, question: str = "", **fields) -> Step:
    """A step with an answer, and a stable id."""
    said = answered(text) | (asked(question) if question else {}) | fields
    return make_step(trajectory_id, index, **({"id": f"{trajectory_id}.{index}"} | said))


def trajectory(*texts: str, task_id: str = "", notes: Sequence[Annotation] = (), question: str = "") -> Trajectory:
    """One that answered with `texts`, as a pool would give it."""
    info = TrajectoryInfo(id="t", task_id=task_id)
    steps = tuple(step("t", text, index, question) for index, text in enumerate(texts))
    return Trajectory(info=info, steps=steps, step_rewards=(0.0,) * len(steps), annotations=tuple(notes))


def records(trajectory_id: str, text: str, *, task_id: str = "", group_id: str | None = None) -> list[Record]:
    """A trajectory that ended with one answer, without a reward."""
    return [
        TrajectoryInfo(id=trajectory_id, task_id=task_id, group_id=group_id),
        step(trajectory_id, text),
        Annotation.end(trajectory_id, "terminated"),
    ]


def references(folder: Path, **answers: str | list[str]) -> Path:
    """A file of references."""
    path = folder / "gold.jsonl"
    shapes = [
        {"task_id": task_id, "answer" if isinstance(given, str) else "answers": given}
        for task_id, given in answers.items()
    ]
    path.write_text("".join(json.dumps(shape) + "\n" for shape in shapes))
    return path
