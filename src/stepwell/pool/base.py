"""What a pool is to everybody who does not store anything themselves: one protocol, met by the SQLite store here."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

from stepwell.curation.selection import Selection
from stepwell.errors import StepwellError
from stepwell.pool.activity import Activity, Origin
from stepwell.pool.credit import StepCredit
from stepwell.pool.frozen import DatasetDiff, DatasetInfo
from stepwell.pool.keeping import Pruned, Retention
from stepwell.pool.lease import Consumption, HeldLease, Lease, LeaseSpec, ReadyCount, Unit
from stepwell.pool.outline import StepOutline
from stepwell.types import (
    Annotation,
    Fork,
    Group,
    GroupInfo,
    Record,
    Status,
    Step,
    Trajectory,
    TrajectoryInfo,
    UpdateInfo,
    Verdict,
)

RecordKind = Literal["group", "trajectory", "step", "annotation", "update"]
KINDS: Final[Mapping[RecordKind, type[Record]]] = {
    "group": GroupInfo,
    "trajectory": TrajectoryInfo,
    "step": Step,
    "annotation": Annotation,
    "update": UpdateInfo,
}
"""What the kinds of records in the log are called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What became of one record that was appended."""

    id: str
    cursor: int | None
    """Its place in the log; None if it was refused."""
    duplicate: bool = False
    """The same record was stored before; nothing was written again."""
    error: StepwellError | None = None
    """Why it was refused; None if it is stored. The other records of the call are not affected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectorySummary:
    """One line of a listing."""

    info: TrajectoryInfo
    channel: str
    """That of its group; `default` without a group."""
    status: Status
    reward: float | None
    verdict: Verdict
    steps: int
    prompt_tokens: int
    response_tokens: int
    policy_version_min: int | None
    """None while it has no steps."""
    policy_version_max: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    """One line of a listing of groups."""

    info: GroupInfo
    state: Literal["open", "ready", "dropped"]
    why: str
    """Why it was dropped."""
    trajectories: int
    complete: int
    failed: int
    policy_version_min: int | None
    """Lowest version of what is handed over; None while it is not ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    """Counts of everything in the pool."""

    cursor: int
    """The newest cursor; grows with every record."""
    groups: int
    groups_ready: int
    groups_dropped: tuple[tuple[str, int], ...]
    """(reason, groups) of those that will never be ready."""
    trajectories: int
    trajectories_by_status: tuple[tuple[Status, int], ...]
    trajectories_rewarded: int
    steps: int
    prompt_tokens: int
    response_tokens: int
    annotations: int
    updates: int
    policy_version: int
    """Highest version that any step or update carries; 0 if none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkCount:
    """Steps of one model and agent whose prompts go on, or do not, from the step before in the same way."""

    model: str
    agent: str
    fork: Fork
    """As `Step.fork`."""
    side: bool
    """Whether they are calls beside the agent's work."""
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refill:
    """A group that cannot become ready with the trajectories that it has: somebody should start more."""

    group_id: str
    task_id: str
    channel: str
    missing: int
    """How many more trajectories it needs."""
    failed: int
    """How many were lost: they ended `failed`, which is no reward of 0."""
    deadline: float | None
    """Unix time in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing in a pool that is not as it should be."""

    kind: Literal["file", "record", "derived", "tags", "cursor", "saved"]
    id: str
    """Of the record; empty if it is about no single one."""
    message: str
    repairable: bool
    """Whether it can be computed again from the records."""


class Pool(Protocol):
    """A durable, append-only log of records with queries over it. Laws: tests/pool/laws.py."""

    def append(self, records: Sequence[Record]) -> Future[list[Receipt]]:
        """Store records, durably, before the future resolves; one receipt per record, in order.

        The same record again is a no-op (`duplicate`). Refused in the receipt: `Conflict` for the same id with other
        content, a second step at the same (trajectory, index), a step after the trajectory's end, a second, different
        end; `NotFound` for a step or annotation whose trajectory or step does not exist, and for a trajectory whose
        group does not. Records of one call see those before them.

        Raises (in the future):
            PoolError: the storage failed; nothing of this call is stored, unless a server went away while it
                committed: then nobody knows, and the same call may be made again.
        """
        ...

    def put(self, *records: Record) -> None:
        """`append`, wait, and raise the first refusal."""
        ...

    def step(self, step_id: str) -> Step:
        """One step. Raises NotFound."""
        ...

    def trajectory(self, trajectory_id: str) -> Trajectory:
        """One trajectory with its steps and what is known about them. Raises NotFound."""
        ...

    def group_info(self, group_id: str) -> GroupInfo:
        """What is known of a group itself. Raises NotFound."""
        ...

    def group(self, group_id: str) -> Group:
        """One group with its trajectories. Raises NotFound."""
        ...

    def trajectories(
        self, selection: Selection | None = None, *, before: int | None = None, limit: int = 50
    ) -> list[tuple[int, TrajectorySummary]]:
        """Newest first, as (cursor, summary); pass the last cursor as `before` for the next page.

        None selects everything. A selection by text brings the index of texts up to date first.
        """
        ...

    def count(self, selection: Selection | None = None) -> int:
        """How many trajectories `selection` wants; its rules are not applied. None counts everything."""
        ...

    def groups(
        self, channel: str | None = None, *, origin: str | None = None, before: int | None = None, limit: int = 50
    ) -> list[tuple[int, GroupSummary]]:
        """Newest first, as (cursor, summary), of one channel or of all; pages as of `trajectories`.

        With an `origin` only the sets of siblings that were forked from this trajectory.
        """
        ...

    def scan(self, selection: Selection | None = None) -> Iterator[Trajectory]:
        """All selected trajectories, whole, oldest first, a few in memory at a time; also those opened meanwhile."""
        ...

    def log(
        self,
        *,
        after: int = 0,
        limit: int = 1000,
        kinds: Sequence[RecordKind] = (),
        channel: str | None = None,
    ) -> list[tuple[int, Record]]:
        """What was appended, as (cursor, record), in order; pass the last cursor as `after` to go on.

        Only records of these `kinds`, if any are given, and only of this `channel`, if one is: an update belongs to the
        channel that has the name of its run.
        """
        ...

    def cursor(self) -> int:
        """The newest cursor; cheap to ask for again and again, to see whether something was appended."""
        ...

    def notes(self, trajectory_id: str) -> list[Annotation]:
        """All that was ever said of a trajectory and its steps, oldest first, also what does not hold any more.

        Raises NotFound.
        """
        ...

    def updates(self, run: str | None = None) -> list[UpdateInfo]:
        """The updates of a run (None: of all runs), oldest first.

        A run that was killed makes its last versions again: of each (run, policy version) the newest counts.
        """
        ...

    def outline(self, trajectory_id: str) -> list[StepOutline]:
        """The steps of a trajectory without their tokens and texts, by index; none if there is no such trajectory."""
        ...

    def steps(self, trajectory_id: str, *, first: int = 0, limit: int = 50) -> list[Step]:
        """Some steps of a trajectory, by index, from the index `first` on; none if there are none."""
        ...

    def stats(self) -> PoolStats:
        """Counts."""
        ...

    def activity(self, since: float | None, until: float, *, parts: int = 60) -> Activity:
        """What came in from `since` (None: from the beginning) until just before `until`, Unix times in seconds.

        The time is cut into `parts` intervals.
        """
        ...

    def origins(self) -> list[Origin]:
        """Where trajectories came from so far."""
        ...

    def forks(self, *, after: int = 0, until: int | None = None) -> list[ForkCount]:
        """Of the steps that calls made: how many there are of each kind, by model and agent, in that order.

        Only of those that were appended after the cursor `after` and, if it is given, up to the cursor `until`: steps
        never change, so who counts again needs to look at the new ones only.
        """
        ...

    def lease(self, spec: LeaseSpec) -> Lease:
        """Hand over ready units that the consumer of `spec` neither holds nor had in this epoch. May be empty.

        A group is ready when `size` of its trajectories are complete (ended, not failed, rewarded): the first to
        complete are handed over; or when its deadline has passed and at least `min_size` are.

        Raises:
            InvalidRequest: a name that no pool can hold.
            NotFound: there is no such dataset.
            NoProducer: there is nothing yet, `wait` is not over, and all producers that were known are gone.
            PoolError: the storage failed; nothing is leased.
        """
        ...

    def count_ready(self, selection: Selection, *, unit: Unit = "group") -> ReadyCount:
        """What a new consumer would be offered of `selection`; its rules are not applied."""
        ...

    def scan_ready(self, selection: Selection, *, unit: Unit = "group", limit: int | None = None) -> Iterator[Group]:
        """What a new consumer would be offered, whole, of the newest policy first, a few units in memory at a time.

        The rules of `selection` are not applied. At most `limit` units, if one is given.
        """
        ...

    def backlog(self, spec: LeaseSpec, *, most: int) -> int:
        """How many ready units the consumer of `spec` neither has nor had, counted up to `most`.

        Its rules are not applied, what is too old for it counts too, and a dataset is not looked at. Raises NotFound if
        there is no selection of the name that it gives.
        """
        ...

    def extend(self, lease_id: str, seconds: float) -> float:
        """Hold the units for `seconds` from now; gives the Unix time until which. Raises NotFound, and Conflict if the
        lease was acknowledged or released, or expired and a unit of it was handed over again."""
        ...

    def settle(self) -> int:
        """Decide on groups whose deadline has passed: ready or dropped; gives their number. A `lease` does it too."""
        ...

    def drop_group(self, group_id: str, reason: str) -> None:
        """Give a group up: it will never be ready, and counts under `reason`. Of one that is dropped already the first
        reason stays. Raises NotFound, and Conflict if it is ready."""
        ...

    def refills(self, channel: str | None = None) -> list[Refill]:
        """The groups that cannot become ready with the trajectories that they have, and how many each lacks."""
        ...

    def consumption(self) -> list[Consumption]:
        """What each consumer holds, has acknowledged and was never given, by epoch."""
        ...

    def held(self) -> list[HeldLease]:
        """The leases that are neither acknowledged nor released and still have units, by when they expire."""
        ...

    def record_credit(self, run: str, policy_version: int, steps: Sequence[StepCredit]) -> None:
        """Keep, durably, what the update that made this version was trained on, in place of what was kept of it before.

        It is no record of the log: archives leave it out, and `prune` forgets it by its age and version alone.
        """
        ...

    def credit(self, run: str, policy_version: int) -> list[StepCredit]:
        """What was kept of an update. Raises NotFound; PoolError if it is damaged."""
        ...

    def require_producer(self, consumer: str) -> None:
        """Raise NoProducer if there were producers and none of them is alive; `consumer` is who waits for them."""
        ...

    def heartbeat(self, producer: str, seconds: float = 60.0) -> None:
        """`producer` makes steps, and will say so again within `seconds`."""
        ...

    def acknowledge(self, lease_id: str) -> None:
        """The units of this lease are consumed: this consumer never gets them again in this epoch. Idempotent. Raises
        NotFound, and Conflict if the lease expired and a unit of it was handed over again in the meantime."""
        ...

    def release(self, lease_id: str) -> None:
        """Give the units of this lease back at once. Idempotent. Raises NotFound."""
        ...

    def release_all(self, consumer: str) -> int:
        """Give back whatever `consumer` still holds: it restarted and lost its leases. Gives the number of leases."""
        ...

    def save_selection(self, name: str, selection: Selection) -> None:
        """Keep `selection` under `name`, in place of what had that name."""
        ...

    def selection(self, name: str) -> Selection:
        """A selection that was saved. Raises NotFound."""
        ...

    def selections(self) -> list[str]:
        """Names of the saved selections."""
        ...

    def delete_selection(self, name: str) -> None:
        """Forget a selection; what was frozen by it stays. Raises NotFound."""
        ...

    def freeze(self, name: str, selection: Selection | str, *, unit: Unit = "group") -> DatasetInfo:
        """Make what `selection` (or the saved one of that name) wants now a dataset: the next version of `name`.

        If nothing has changed since its newest version, that one is given and none is made.

        Raises:
            InvalidRequest: nothing is wanted, or the name has an '@'.
            NotFound: there is no such selection.
        """
        ...

    def datasets(self) -> list[DatasetInfo]:
        """All versions of all datasets, by name, newest first."""
        ...

    def dataset(self, name: str) -> DatasetInfo:
        """One dataset: `name`, of its newest version, or `name@version`. Raises NotFound."""
        ...

    def dataset_diff(self, before: str, after: str) -> DatasetDiff:
        """What one version has otherwise than another. Raises NotFound."""
        ...

    def scan_dataset(self, name: str) -> Iterator[Group]:
        """All units of a dataset, whole, a few in memory at a time. Raises NotFound."""
        ...

    def verify(self, *, repair: bool = False, progress: Callable[[int], None] = lambda _: None) -> list[Fault]:
        """Read everything and compare it with its digests, and what is derived with what it is derived from.

        `repair` makes indexes and derived columns anew; damaged records cannot be. `progress` hears of the number of
        records that were read since it was last called.
        """
        ...

    def prune(self, kept: Retention, *, dry_run: bool = False) -> Pruned:
        """Forget what is not `kept`. What is forgotten may be appended again, as new."""
        ...

    def backup(self, path: Path) -> None:
        """Write a whole copy to the file `path`, of one moment, while others go on reading and writing.

        Raises:
            InvalidRequest: the database has a tool of its own for that, which the message names.
            PoolError: the file exists, or cannot be written.
        """
        ...

    def close(self) -> None:
        """Finish what was appended and close the storage."""
        ...
