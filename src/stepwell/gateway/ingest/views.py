"""What the routes of this door answer: models for the OpenAPI document, and the JSON of stored trajectories."""

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from stepwell.gateway.ingest.wire import StepWire, TrajectoryWire
from stepwell.prefix_tree.pack import Merging
from stepwell.prefix_tree.savings import savings, sharing
from stepwell.prefix_tree.tree import merged
from stepwell.types import (
    Annotation,
    AnnotationKind,
    GroupInfo,
    Ids,
    Record,
    Status,
    Step,
    Trajectory,
    TrajectoryInfo,
    UpdateInfo,
)
from stepwell.types import Verdict as StoredVerdict


class View(BaseModel):
    """Base of what is only ever sent."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Refusal(View):
    """Why an item was refused."""

    code: str
    """What it is, such as `conflict`."""
    message: str
    """What to do about it."""


class Verdict(View):
    """What became of one item."""

    id: str
    """The item's."""
    status: Literal["stored", "duplicate", "refused"]
    """`duplicate`: the same was stored before, and nothing was written again."""
    cursor: int | None
    """Its place in the log; null if it was refused."""
    error: Refusal | None
    """Null unless it was refused."""


class Verdicts(View):
    """One verdict per item, in order."""

    results: list[Verdict]


class Problem(View):
    """An error."""

    message: str
    """The mistake and its remedy."""
    type: str
    """Its family in OpenAI's API."""
    param: str | None
    """Place of the mistake in the request."""
    code: str
    """What exactly it is."""


class ErrorAnswer(View):
    """Every error answer."""

    error: Problem


class SessionAnswer(View):
    """How to call in a session: with one of the base URLs, or with the key, or with both."""

    trajectory_id: str
    """The trajectory that its calls become."""
    api_key: str
    """A key for this trajectory alone."""
    openai_base_url: str
    """For OpenAI's clients."""
    anthropic_base_url: str
    """For Anthropic's clients."""


class NoteView(View):
    """Feedback or an event."""

    id: str
    target: Literal["step", "trajectory"]
    target_id: str
    kind: AnnotationKind
    name: str
    """Which feedback or event: `thumbs` or `user_turn`, say."""
    value: float | None
    text: str
    created_at: float
    """Unix time in seconds."""


class TrajectoryView(View):
    """A trajectory with its steps and what is known about them."""

    info: TrajectoryWire
    status: Status
    """`open`, or how it ended."""
    why: str
    """What was said about the end."""
    reward: float | None
    """Sum of all reward parts; null if nothing was rewarded yet."""
    reward_parts: dict[str, float]
    """Name of each part with its sum."""
    step_rewards: list[float]
    """One per step; that of the whole trajectory is counted at its last."""
    steps: list[StepWire]
    annotations: list[NoteView]
    """Feedback, events and notes, in the order in which they arrived."""
    verdict: StoredVerdict
    """Whether people let it be trained on."""
    tags: list[str]
    """Its labels."""


class SegmentView(View):
    """Consecutive tokens of a prefix tree that the same rows go through."""

    start: int
    """Place of its first token in the tree."""
    stop: int
    """Place after its last token, where what follows it begins."""
    end: int
    """Place after all that follows it."""
    depth: int
    """Position of its first token in the rows that go through it."""
    parent: int
    """Index of the segment that it continues; -1: none."""
    rows: int
    """How many rows go through it or end in it."""


class TreeView(View):
    """What merging shared prefixes saves when a group is trained on, and the tree of its rows."""

    rows: int
    """Trainable steps: each is a row of its prompt and its response."""
    flat_tokens: int
    """Of all rows."""
    tokens: int
    """That an update on the group computes."""
    ratio: float
    """`tokens` for each of `flat_tokens`; 1: nothing is saved."""
    segments: list[SegmentView]
    """Of the tree of all rows, parents before children. A pass that it does not fit into gets a part of it."""


class StatsView(View):
    """Counts of everything in the pool."""

    cursor: int
    """The newest place in the log."""
    groups: int
    groups_ready: int
    groups_dropped: dict[str, int]
    """By reason: those that will never be ready."""
    trajectories: int
    trajectories_by_status: dict[str, int]
    trajectories_rewarded: int
    steps: int
    prompt_tokens: int
    response_tokens: int
    annotations: int
    updates: int
    policy_version: int
    """Highest version that any step or update carries."""


def step_json(step: Step) -> dict[str, Any]:
    """A step as `StepWire` reads it."""
    shape = dataclasses.asdict(step)
    return {**shape, **{name: shape[name].tolist() for name in ("prompt_ids", "response_ids", "logprobs")}}


def trajectory_json(trajectory: Trajectory) -> bytes:
    """A trajectory as `TrajectoryView` has it. ASCII: texts with lone surrogates, which agents do produce, fit too."""
    return json.dumps(trajectory_shape(trajectory)).encode()


def trajectory_shape(trajectory: Trajectory) -> dict[str, Any]:
    """A trajectory as `TrajectoryView` has it."""
    return {
        "info": dataclasses.asdict(trajectory.info),
        "status": trajectory.status,
        "why": trajectory.why,
        "reward": trajectory.reward,
        "reward_parts": dict(trajectory.reward_parts),
        "step_rewards": list(trajectory.step_rewards),
        "steps": [step_json(step) for step in trajectory.steps],
        "annotations": [dataclasses.asdict(note) for note in trajectory.annotations],
        "verdict": trajectory.verdict,
        "tags": list(trajectory.tags),
    }


def tree_shape(rows: Sequence[Ids], budget: int, merging: Merging) -> dict[str, Any]:
    """The rows of a group as `TreeView` has them."""
    saved, whole = savings(rows, budget, merging), merged(rows)
    parts = zip(whole.segments, sharing(whole), strict=True)
    segments = [{**dataclasses.asdict(segment), "rows": through} for segment, through in parts]
    return {**dataclasses.asdict(saved), "ratio": saved.ratio, "segments": segments}


def log_line(cursor: int, record: Record) -> dict[str, Any]:
    """A record as it stands in the log; metrics that are no number are null."""
    shape = step_json(record) if isinstance(record, Step) else dataclasses.asdict(record)
    if isinstance(record, UpdateInfo):
        shape["metrics"] = {name: value if math.isfinite(value) else None for name, value in record.metrics}
    return {"cursor": cursor, "kind": _KINDS[type(record)], "record": shape}


_KINDS: Final = {
    GroupInfo: "group",
    TrajectoryInfo: "trajectory",
    Step: "step",
    Annotation: "annotation",
    UpdateInfo: "update",
}
