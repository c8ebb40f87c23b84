"""What a training run asks of those who play for it, and what they tell: the words of `stepwell worker`, as JSON."""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from stepwell.rollout.run import Ending


class Groups(msgspec.Struct, tag="groups", frozen=True):
    """Make a group of each of these tasks."""

    job: int
    tasks: Sequence[str]
    size: int


class SiblingGroups(msgspec.Struct, tag="siblings", frozen=True):
    """Make the groups of the next turn, of new trunks of these tasks where none is left."""

    job: int
    tasks: Sequence[str]
    count: int
    held: int
    version: int
    """The policy's."""


class Trials(msgspec.Struct, tag="trials", frozen=True):
    """One trajectory of each of these tasks, outside of any group."""

    job: int
    tasks: Sequence[str]
    temperature: float


Job: TypeAlias = Groups | SiblingGroups | Trials


class Opened(msgspec.Struct, tag="opened", frozen=True):
    """A group is in the pool from now on; if the worker dies it will never be complete."""

    job: int
    group_id: str


class Begun(msgspec.Struct, tag="begun", frozen=True):
    """All trajectories of the job play."""

    job: int


class Ended(msgspec.Struct, tag="ended", frozen=True):
    """A trajectory did."""

    job: int
    ending: Ending


class Done(msgspec.Struct, tag="done", frozen=True):
    """The job is."""

    job: int
    made: int
    """Groups that are ready."""


class Failed(msgspec.Struct, tag="failed", frozen=True):
    """The job cannot be done."""

    job: int
    kind: str
    """Name of an error in `stepwell.errors`."""
    why: str


Told: TypeAlias = Opened | Begun | Ended | Done | Failed

JOBS = msgspec.json.Decoder(Job)
TOLD = msgspec.json.Decoder(Told)
