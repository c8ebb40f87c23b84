"""What is stored of a score: all of its rewards or none, and of two different scores one.

A pool judges each record by itself, and somebody else may run the same rescoring and find something else. So a single
record decides, the *mark*, whose id follows from the name of the rescoring and from what was looked at: a pool takes
one such record and refuses another. One reward is its own mark. Several are stored after a mark that is a note and
holds them all; whoever meets the note without the rewards, because its author was killed or is slow, stores them.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal

import msgspec
from pydantic import BaseModel, SecretBytes, SecretStr

from stepwell.errors import InvalidRecord
from stepwell.pool import rows
from stepwell.scoring.base import Score, ScorerConfig
from stepwell.types import Annotation, Trajectory

NOTE: Final = "rescored"
"""Name of the notes that hold several rewards."""
_LONGEST_TEXT: Final = 4096
"""Characters that are kept of a scorer's words."""


class _Decision(msgspec.Struct):
    """The text of a note."""

    text: str
    """Of each reward."""
    rewards: list[tuple[Literal["step", "trajectory"], str, str, float]]
    """(target, its id, part, value) of each."""


_DECISIONS: Final = msgspec.json.Decoder(_Decision)


def name_of(config: ScorerConfig, *, replaces: bool = False) -> str:
    """A name for rescoring with these settings: others make another one, so that they score anew. Keys do not count."""
    digest = hashlib.sha256(json.dumps([_plain(config), replaces], sort_keys=True, default=str).encode()).hexdigest()
    return f"{config.use or type(config).__name__}-{digest[:8]}"


def _plain(settings: object) -> object:
    """What tells settings from others, without secrets."""
    match settings:
        case BaseModel():
            return [type(settings).__name__, {name: _plain(value) for name, value in settings}]
        case Mapping():
            return {str(name): _plain(value) for name, value in settings.items()}
        case set() | frozenset():
            return sorted(map(str, settings))
        case list() | tuple():
            return [_plain(value) for value in settings]
        case SecretStr() | SecretBytes():
            return ""
    return settings


def mark_of(name: str, replaces: bool, trajectory: Trajectory) -> str:
    """The id of the record that decides: follows from the rescoring and from what there is to look at."""
    feedback = [note.id for note in trajectory.annotations if note.kind == "feedback"]
    looked_at = [name, replaces, trajectory.info.id, [step.id for step in trajectory.steps], feedback]
    return f"score-{hashlib.sha256(json.dumps(looked_at).encode()).hexdigest()[:32]}"


def rewards_of(trajectory: Trajectory, score: Score) -> list[Annotation]:
    """The rewards that a score is.

    Raises:
        InvalidRecord: no pool can hold one of them.
    """
    unknown = score.steps.keys() - {step.id for step in trajectory.steps}
    if unknown:
        raise InvalidRecord(f"the scorer rewards steps that the trajectory does not have: {', '.join(sorted(unknown))}")
    text = score.text[:_LONGEST_TEXT].encode(errors="replace").decode().replace("\0", "")
    whole = trajectory.info.id
    rewards = [Annotation.reward("trajectory", whole, value, part) for part, value in score.parts.items()]
    for step_id, parts in score.steps.items():
        rewards += [Annotation.reward("step", step_id, value, part) for part, value in parts.items()]
    for reward in rewards:
        rows.draft(reward)  # the checks of the pool, which would refuse this one alone and keep the rest
    return [replace(reward, text=text) for reward in rewards]


def zeros(notes: Iterable[Annotation], rewards: Sequence[Annotation]) -> list[Annotation]:
    """A reward of 0 in place of each that holds, but for those that `rewards` replace."""
    new = {_place(reward) for reward in rewards}
    held = {_place(note): note for note in notes if note.kind == "reward"}
    over = [note for place, note in held.items() if place not in new and note.value]
    return [
        replace(Annotation.reward(note.target, note.target_id, 0.0, note.name), text=rewards[0].text) for note in over
    ]


def _place(reward: Annotation) -> tuple[str, str, str]:
    """What a newer reward takes the place of."""
    return reward.target, reward.target_id, reward.name


def marked(mark: str, trajectory_id: str, rewards: Sequence[Annotation]) -> Annotation:
    """The record that decides on `rewards`, at least one, which all have the same text."""
    if len(rewards) == 1:
        return replace(rewards[0], id=mark)
    given = [(reward.target, reward.target_id, reward.name, reward.value or 0.0) for reward in rewards]
    text = msgspec.json.encode(_Decision(rewards[0].text, given)).decode()
    return Annotation(id=mark, target="trajectory", target_id=trajectory_id, kind="note", name=NOTE, text=text)


def following(decided: Annotation) -> list[Annotation]:
    """The rewards that the record that decided holds, the same ones whoever asks; none if it is the only one."""
    if decided.kind == "reward":
        return []
    decision = _DECISIONS.decode(decided.text)
    return [
        replace(Annotation.reward(target, target_id, value, part), id=f"{decided.id}-{number}", text=decision.text)
        for number, (target, target_id, part, value) in enumerate(decision.rewards)
    ]
