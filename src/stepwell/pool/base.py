"""What a pool is to everybody who does not store anything themselves: one protocol, met by the SQLite store here."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from stepwell.errors import StepwellError
from stepwell.types import Fork, Group, Record, Status, Step, Trajectory, TrajectoryInfo, UpdateInfo


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
class Lease:
    """Ready groups that one consumer holds until it acknowledges them or `expires_at` passes."""

    id: str
    consumer: str
    groups: tuple[Group, ...]
    expires_at: float
    """Unix time in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectorySummary:
    """One line of a listing."""

    info: TrajectoryInfo
    status: Status
    reward: float | None
    steps: int
    response_tokens: int
    policy_version_min: int | None
    """None while it has no steps."""
    policy_version_max: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    """Counts of everything in the pool."""

    cursor: int
    """The newest cursor; grows with every record."""
    groups: int
    groups_ready: int
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


class Pool(Protocol):
    """A durable, append-only log of records with queries over it. Laws: tests/pool/laws.py."""

    def append(self, records: Sequence[Record]) -> Future[list[Receipt]]:
        """Store records, durably, before the future resolves; one receipt per record, in order.

        The same record again is a no-op (`duplicate`). Refused in the receipt: `Conflict` for the same id with other
        content, a second step at the same (trajectory, index), a step after the trajectory's end, a second, different
        end; `NotFound` for a step or annotation whose trajectory or step does not exist, and for a trajectory whose
        group does not. Records of one call see those before them.

        Raises (in the future):
            PoolError: the storage failed; nothing of this call is stored.
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

    def group(self, group_id: str) -> Group:
        """One group with its trajectories. Raises NotFound."""
        ...

    def trajectories(self, *, before: int | None = None, limit: int = 50) -> list[tuple[int, TrajectorySummary]]:
        """Newest first, as (cursor, summary); pass the last cursor as `before` for the next page."""
        ...

    def updates(self, run: str | None = None) -> list[UpdateInfo]:
        """The updates of a run (None: of all runs), oldest first.

        A run that was killed makes its last versions again: of each (run, policy version) the newest counts.
        """
        ...

    def stats(self) -> PoolStats:
        """Counts."""
        ...

    def forks(self) -> list[ForkCount]:
        """Of the steps that calls made: how many there are of each kind, by model and agent, in that order."""
        ...

    def lease(
        self,
        consumer: str,
        *,
        limit: int,
        seconds: float = 600.0,
        min_policy_version: int = 0,
        group_ids: Sequence[str] = (),
        channel: str | None = None,
    ) -> Lease:
        """Hand over up to `limit` ready groups, oldest first, that `consumer` neither holds nor has acknowledged.

        A group is ready when at least `size` of its trajectories are complete (ended, not failed, rewarded); exactly
        `size` of them, the first to complete, are handed over. Groups with a step sampled by a version below
        `min_policy_version` are passed over. `group_ids` and `channel` restrict the choice if given. May be empty.
        """
        ...

    def acknowledge(self, lease_id: str) -> None:
        """The groups of this lease are consumed: this consumer never gets them again. Idempotent. Raises NotFound, and
        Conflict if the lease expired and a group of it was handed over again in the meantime."""
        ...

    def release(self, lease_id: str) -> None:
        """Give the groups of this lease back at once. Idempotent. Raises NotFound."""
        ...

    def release_all(self, consumer: str) -> int:
        """Give back whatever `consumer` still holds: it restarted and lost its leases. Gives the number of leases."""
        ...

    def close(self) -> None:
        """Finish what was appended and close the storage."""
        ...
