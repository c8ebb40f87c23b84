"""A pool that looks like weeks of a team's work, made up from a seed: what the dashboard is measured and shown with.

Two runs train on a search task over three agents' groups, a live product sends conversations, some trajectories are
still open, some failed, some drift, some were judged by people, and two consumers lease. All times lie in the six hours
before `now`.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

import numpy as np

from stepwell.pool.base import GroupSummary, Pool
from stepwell.pool.credit import StepCredit
from stepwell.pool.lease import LeaseSpec
from stepwell.types import Annotation, End, Fork, GroupInfo, Record, Step, TrajectoryInfo, UpdateInfo

SPAN: Final = 6 * 3600.0
"""Seconds over which everything is spread."""
SIZE: Final = 8
"""Trajectories of a group."""
_AGENTS: Final = ("searcher", "planner", "coder")
_CHANNELS: Final = ("grpo-search", "rtpo-search")
_WORDS: Final = ("river", "archive", "ledger", "harbour", "lantern", "orchard", "quarry", "granite", "meadow", "signal")
_PEOPLE: Final = ("Marn", "Ilvo", "Teska", "Orrin", "Pell", "Sova")
_BATCH: Final = 512


@dataclass(frozen=True, slots=True)
class _Moment:
    """Where in the story a group stands."""

    at: float
    """Unix time in seconds."""
    version: int
    skill: float
    """Probability that a trajectory succeeds."""


def fill(
    pool: Pool, steps: int, seed: int = 0, now: float | None = None, heard: Callable[[int], None] = lambda _: None
) -> None:
    """Append groups until there are about `steps` steps; `heard` gets the number of each batch.

    The same seed and `now` give the same records.
    """
    now = time.time() if now is None else now
    random = np.random.default_rng(seed)
    records = _story(random, steps, now)
    while batch := list(islice(records, _BATCH)):
        pool.put(*batch)
        heard(sum(isinstance(record, Step) for record in batch))
    for run in _CHANNELS:
        _train(pool, random, run)
    _consume(pool)


def _train(pool: Pool, random: np.random.Generator, run: str) -> None:
    """Say of each update which groups it was trained on: those that its version sampled."""
    by_version: dict[int, list[GroupSummary]] = {}
    for _, line in pool.groups(run, limit=400):
        if line.state == "ready" and line.policy_version_min is not None:
            by_version.setdefault(line.policy_version_min, []).append(line)
    for version, lines in by_version.items():
        steps = [
            (line.info.id, step)
            for line in lines[:4]
            for trajectory in pool.group(line.info.id).trajectories
            for step in trajectory.steps
        ]
        pool.record_credit(run, version + 1, [_credited(random, group, step, len(steps)) for group, step in steps])


def _credited(random: np.random.Generator, group: str, step: Step, count: int) -> StepCredit:
    return StepCredit(
        step_id=step.id,
        trajectory_id=step.trajectory_id,
        group_id=group,
        index=step.index,
        tokens=len(step.response_ids),
        advantage=float(random.normal()),
        weight=1 / count,
    )


def _consume(pool: Pool) -> None:
    for channel in _CHANNELS:
        spec = LeaseSpec.model_validate({"consumer": channel, "selection": {"channel": channel}, "limit": 4})
        for _ in range(3):
            pool.acknowledge(pool.lease(spec).id)
    pool.lease(LeaseSpec(consumer="exporter", limit=2, unit="group"))


def _story(random: np.random.Generator, steps: int, now: float) -> Iterator[Record]:
    made, number = 0, 0
    while made < steps:
        share = made / steps
        moment = _Moment(now - SPAN * (1 - share), int(share * 40), 0.2 + 0.65 * share)
        for record in _group(random, number, moment, last=steps - made < 200):
            made += isinstance(record, Step)
            yield record
        if number % 3 == 0:
            yield from _conversation(random, number, moment)
        number += 1
    for run, pace in zip(_CHANNELS, (1.0, 1.25), strict=True):
        yield from _updates(random, run, pace, now)


def _group(random: np.random.Generator, number: int, moment: _Moment, last: bool) -> Iterator[Record]:
    channel, agent = _CHANNELS[number % 2], _AGENTS[number % 3]
    group = GroupInfo(
        id=f"group-{number}", task_id=f"question-{number % 50}", size=SIZE, channel=channel, created_at=moment.at
    )
    yield group
    question = _ids(random, 40)
    for member in range(SIZE):
        info = TrajectoryInfo(
            id=f"traj-{number}-{member}",
            group_id=group.id,
            task_id=group.task_id,
            agent=agent,
            source="fork" if member >= SIZE - 2 and number % 2 else "rollout",
            created_at=moment.at + member,
        )
        yield info
        yield from _episode(random, info, moment, question, still_open=last and member > 4)


def _episode(
    random: np.random.Generator, info: TrajectoryInfo, moment: _Moment, prompt: np.ndarray, still_open: bool
) -> Iterator[Record]:
    turns = int(random.integers(2, 6))
    person, word = random.choice(_PEOPLE), random.choice(_WORDS)
    messages: list[dict[str, object]] = [
        {"role": "system", "content": "Answer with the search tool. Say the answer alone at the end."},
        {"role": "user", "content": f"Which {word} did {person} write about in {info.task_id}?"},
    ]
    broken = random.random() < 0.02
    for index in range(turns):
        final = index == turns - 1
        answer = _answer(random, index, final and not still_open, person)
        step = _step(random, info, index, prompt, messages, answer, moment, abort=broken and final)
        yield step
        messages = [*messages, answer]
        if not final:
            found = f"{random.choice(_WORDS)} {random.choice(_WORDS)}: {person} wrote of the {random.choice(_WORDS)}."
            messages.append({"role": "tool", "tool_call_id": f"call-{index}", "content": found})
        prompt = np.concatenate((step.prompt_ids, step.response_ids, _ids(random, 24)))
    if still_open:
        return
    if broken:
        yield _at(Annotation.end(info.id, "failed", "the engine went away (503)"), moment, turns + 1)
        return
    how: End = "truncated" if random.random() < 0.08 else "terminated"
    yield _at(Annotation.end(info.id, how, "12 turns" if how == "truncated" else ""), moment, turns + 1)
    success = float(random.random() < moment.skill)
    yield _at(Annotation.reward("trajectory", info.id, success, "answer"), moment, turns + 1)
    if random.random() < 0.3:
        yield _at(Annotation.reward("step", step.id, 0.1, "format"), moment, turns + 1)
    yield from _opinion(random, info, moment)


def _opinion(random: np.random.Generator, info: TrajectoryInfo, moment: _Moment) -> Iterator[Record]:
    luck = random.random()
    if luck < 0.02:
        yield _at(Annotation.verdict("trajectory", info.id, "reject", "the answer was in the prompt"), moment, 60)
    elif luck < 0.04:
        yield _at(Annotation.tag("trajectory", info.id, "interesting"), moment, 60)
    elif luck < 0.05:
        yield _at(Annotation.verdict("trajectory", info.id, "accept"), moment, 60)


def _conversation(random: np.random.Generator, number: int, moment: _Moment) -> Iterator[Record]:
    """A person who talks to the product."""
    info = TrajectoryInfo(id=f"chat-{number}", agent="support", source="gateway", created_at=moment.at)
    yield info
    messages = [{"role": "user", "content": f"Hello, where is my {random.choice(_WORDS)}?"}]
    answer = {"role": "assistant", "content": f"It is by the {random.choice(_WORDS)}."}
    fork: Fork = "template" if random.random() < 0.1 else "root"
    yield _step(random, info, 0, _ids(random, 30), messages, answer, moment, fork=fork)
    if random.random() < 0.4:
        thumbs = Annotation(
            target="trajectory", target_id=info.id, kind="feedback", name="thumbs", value=float(random.choice((-1, 1)))
        )
        yield _at(thumbs, moment, 30)


def _answer(random: np.random.Generator, index: int, final: bool, person: str) -> dict[str, object]:
    if final:
        return {"role": "assistant", "content": f"{random.choice(_WORDS)} of {person}"}
    arguments = json.dumps({"query": f"{person} {random.choice(_WORDS)}"})
    call = {"id": f"call-{index}", "type": "function", "function": {"name": "search", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _step(
    random: np.random.Generator,
    info: TrajectoryInfo,
    index: int,
    prompt: np.ndarray,
    messages: Sequence[Mapping[str, object]],
    answer: Mapping[str, object],
    moment: _Moment,
    abort: bool = False,
    fork: Fork = "",
) -> Step:
    sampled = int(random.integers(8, 40))
    return Step(
        id=f"step-{info.id}-{index}",
        trajectory_id=info.id,
        index=index,
        prompt_ids=prompt,
        response_ids=_ids(random, sampled),
        logprobs=-random.exponential(0.4, sampled).astype(np.float32),
        policy_version_min=moment.version,
        policy_version_max=moment.version + int(random.random() < 0.1),
        finish_reason="abort" if abort else "stop",
        model="tiny",
        fork=fork or ("root" if index == 0 else ""),
        dialect="chat",
        request=json.dumps({"model": "tiny", "messages": messages}),
        response=json.dumps(answer),
        created_at=moment.at + 2 * index,
        latency=float(random.lognormal(-0.7, 0.6)),
    )


def _updates(random: np.random.Generator, run: str, pace: float, now: float) -> Iterator[Record]:
    for version in range(1, 41):
        reward = 0.85 - 0.65 * float(np.exp(-pace * version / 14)) + random.normal(0, 0.02)
        flat, merged = 9_000 + int(random.integers(2_000)), 3_000 + int(random.integers(500))
        metrics = {
            "reward_mean": reward,
            "reward_std": 0.4,
            "policy_loss": 0.1 * float(np.exp(-version / 20)),
            "entropy": 1.8 - 0.02 * version,
            "approx_kl": 0.002 * version,
            "clip_fraction": 0.05,
            "staleness_mean": float(version % 3) / 2,
            "trained_steps": 128.0,
            "trained_tokens": float(flat),
            "tree_tokens": float(merged),
            "tree_ratio": merged / flat,
            "seconds_collect": 4.0 + random.normal(0, 0.2),
            "seconds_learn": 2.0 + random.normal(0, 0.1),
            "seconds_publish": 0.05,
        }
        at = now - SPAN + SPAN * version / 41
        yield UpdateInfo(
            id=f"update-{run}-{version}", run=run, policy_version=version, metrics=tuple(metrics.items()), created_at=at
        )


def _at(annotation: Annotation, moment: _Moment, seconds: float) -> Annotation:
    return replace(annotation, id=f"note-{annotation.target_id}-{annotation.kind}", created_at=moment.at + seconds)


def _ids(random: np.random.Generator, count: int) -> np.ndarray:
    return random.integers(0, 20_000, count).astype(np.int32)
