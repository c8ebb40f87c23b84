"""Who plays for a run: someone in this process, or several in processes of their own. The trainer does not know."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from stepwell.rollout.run import Ending


class Crew(Protocol):
    """Has trajectories played, and tells of each one's end."""

    async def groups(self, tasks: Iterator[str], count: int, size: int, begun: Callable[[], None]) -> int:
        """As `stepwell.rollout.group.Collector.collect_groups`."""
        ...

    async def siblings(self, tasks: Iterator[str], count: int, held: int, version: int) -> int:
        """As `stepwell.rollout.siblings.SiblingCollector.collect`, for the policy of this version."""
        ...

    async def trials(self, tasks: Sequence[str], temperature: float) -> list[Ending]:
        """As `stepwell.rollout.group.Collector.evaluate`."""
        ...
