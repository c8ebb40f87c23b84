"""What a consumer asks the feed for, and what it gets."""

from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict, Field

from stepwell.config import Config, Count
from stepwell.curation.selection import Selection
from stepwell.types import Group

Unit = Literal["group", "siblings", "trajectory"]
Order = Literal["fifo", "freshest", "priority", "random"]


class LeaseSpec(Config):
    """Which units are wanted, in which order, and how many. A unit goes to each consumer once in each epoch."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"consumer": "trainer", "limit": 8, "max_staleness": 2}]})

    consumer: str = Field(min_length=1, max_length=256)
    """Who asks. Consumers do not take anything from each other."""
    epoch: Count = 0
    """The pass over the data: another number gives everything once more."""
    unit: Unit = "group"
    """What is handed over at once: ready groups that are no siblings; sets of siblings; or single trajectories that are
    complete, each as a group of one."""
    selection: Selection | str = Selection()
    """What is wanted, or the name of a saved selection, as it is at the time of the lease. In a group, members that are
    not wanted are left out; what remains must still be enough of them."""
    dataset: str = ""
    """Name of a dataset, or `name@version`: only its units and only its members are handed over."""
    order: Order = "fifo"
    """`fifo`: as they became ready; `freshest`: of the newest policy first; `priority`: highest first, then as fifo;
    `random`: shuffled by `seed`."""
    seed: Count = 0
    """Of the random order."""
    limit: int = Field(default=1, ge=1, le=2**63 - 1)
    """At most so many units."""
    max_steps: int | None = Field(default=None, ge=1, le=2**63 - 1)
    """At most so many steps. The first unit is handed over even if it has more, or else nothing would ever move."""
    max_tokens: int | None = Field(default=None, ge=1, le=2**63 - 1)
    """At most so many tokens, prompts included; as `max_steps`."""
    max_staleness: Count | None = None
    """How many policy versions the oldest token of a unit may lie behind `policy_version` when it is handed over; what
    lies further behind is dropped for this consumer as `stale`. None: any number."""
    policy_version: Count | None = None
    """The version that is trained now; None: that of the newest update in the pool."""
    seconds: float = Field(default=600.0, gt=0)
    """After so long without `acknowledge` or `extend` the units may be handed over again."""
    wait: float = Field(default=0.0, ge=0)
    """Wait so many seconds for a unit if there is none."""

    @property
    def selection_given(self) -> Selection:
        """The selection, once its name was looked up. Raises TypeError before that."""
        if isinstance(self.selection, str):
            raise TypeError(f"the selection {self.selection!r} was not looked up")
        return self.selection


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Units that one consumer holds until it acknowledges them or `expires_at` passes."""

    id: str
    consumer: str
    groups: tuple[Group, ...]
    """In the order that was asked for; their trajectories in the order in which they became complete."""
    expires_at: float
    """Unix time in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLease:
    """A lease that was neither acknowledged nor released, as somebody else sees it."""

    id: str
    consumer: str
    epoch: int
    units: int
    steps: int
    tokens: int
    expires_at: float
    """Unix time in seconds; what expired may be handed over again, and is held until it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumption:
    """What one consumer did in one epoch."""

    consumer: str
    epoch: int
    held: int
    """Units that it has and has not acknowledged, expired ones included."""
    acknowledged: int
    steps: int
    """Of the acknowledged units."""
    tokens: int
    dropped: tuple[tuple[str, int], ...]
    """(reason, units) of what it never got, by reason."""


@dataclass(frozen=True, slots=True)
class ReadyCount:
    """What a new consumer would be offered."""

    units: int
    trajectories: int
    """In all the units."""
