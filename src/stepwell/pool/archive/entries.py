"""What an archive is written from: trajectories with their group and with every annotation they ever got."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from stepwell.types import Annotation, Group, GroupInfo, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One trajectory as it is archived, or a group that has none yet."""

    group: GroupInfo | None = None
    """Its group; None if it belongs to none, or the group is archived elsewhere."""
    trajectory: Trajectory | None = None
    """None only for a group without trajectories."""
    notes: tuple[Annotation, ...] = ()
    """All annotations of the trajectory and of its steps, also those that a newer one replaced, in the order in which
    they arrived. Only the view `rl` looks at more than feedback."""


Item = Entry | Group | Trajectory
"""What can be written. Of a `Group` or a `Trajectory` only those annotations are archived that it carries itself."""


def entries(items: Iterable[Item]) -> Iterator[Entry]:
    """Each item as entries, one after the other; the entries of a group follow each other."""
    for item in items:
        if isinstance(item, Entry):
            yield item
        elif isinstance(item, Trajectory):
            yield Entry(trajectory=item, notes=item.annotations)
        elif not item.trajectories:
            yield Entry(group=item.info)
        else:
            for member in item.trajectories:
                # a feed also hands over sets that are no group of the pool, such as a single trajectory
                own = item.info if member.info.group_id == item.info.id else None
                yield Entry(group=own, trajectory=member, notes=member.annotations)
