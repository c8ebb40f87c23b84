"""One update: what it measured, what it was trained on, and what was not taken, with the reasons."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from stepwell.errors import NotFound
from stepwell.pool.base import Pool
from stepwell.pool.credit import StepCredit
from stepwell.types import UpdateInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCredit:
    """What one group brought."""

    group_id: str
    trajectories: int
    steps: int
    """That were trained on."""
    tokens: int
    lowest: float
    """Of the advantages of its steps."""
    highest: float
    weight: float
    """Its share in the loss."""
    left_out: int
    """Steps that had no part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateView:
    """The page."""

    update: UpdateInfo
    before: int | None
    """The version before it that the run has recorded."""
    after: int | None
    credits: tuple[StepCredit, ...] | None
    """None: nobody kept them."""
    groups: tuple[GroupCredit, ...]
    left_out: tuple[tuple[str, int], ...]
    """(reason, steps) of what was leased for it and had no part."""
    dropped: tuple[tuple[str, int, int], ...]
    """(reason, units, epoch) of what the pool never handed to the run."""


def read_update_view(pool: Pool, run: str, version: int) -> UpdateView:
    """The page of one update. Raises NotFound and PoolError."""
    updates = {update.policy_version: update for update in pool.updates(run)}
    if version not in updates:
        raise NotFound(f"the run {run!r} has recorded no update of version {version}")
    try:
        credits: tuple[StepCredit, ...] | None = tuple(pool.credit(run, version))
    except NotFound:
        credits = None
    own = [one for one in pool.consumption() if one.consumer == run]
    return UpdateView(
        update=updates[version],
        before=max((other for other in updates if other < version), default=None),
        after=min((other for other in updates if other > version), default=None),
        credits=credits,
        groups=by_group(credits or ()),
        left_out=tuple(Counter(line.left_out for line in credits or () if line.left_out).most_common()),
        dropped=tuple((reason, units, one.epoch) for one in own for reason, units in one.dropped),
    )


def by_group(credits: Sequence[StepCredit]) -> tuple[GroupCredit, ...]:
    """One line per group, in the order of their first steps."""
    lines: dict[str, list[StepCredit]] = defaultdict(list)
    for line in credits:
        lines[line.group_id].append(line)
    return tuple(_group(group_id, own) for group_id, own in lines.items())


def _group(group_id: str, lines: Sequence[StepCredit]) -> GroupCredit:
    trained = [line for line in lines if not line.left_out]
    advantages = [line.advantage for line in trained] or [0.0]
    return GroupCredit(
        group_id=group_id,
        trajectories=len({line.trajectory_id for line in lines}),
        steps=len(trained),
        tokens=sum(line.tokens for line in trained),
        lowest=min(advantages),
        highest=max(advantages),
        weight=sum(line.weight for line in trained),
        left_out=len(lines) - len(trained),
    )
