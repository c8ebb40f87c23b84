"""How prompts went on, over all steps: each is looked at once, however many pages ask, and however often."""

import threading
from collections import Counter

from stepwell.pool.base import ForkCount, Pool
from stepwell.pool.fidelity import Fidelity, fidelity
from stepwell.types import Fork

_Kind = tuple[str, str, Fork, bool]


class DriftLog:
    """Counts that all pages of a dashboard share; any thread may read."""

    def __init__(self) -> None:
        """Nothing is counted yet."""
        self._lock = threading.Lock()
        self._cursor = 0
        self._counts: Counter[_Kind] = Counter()

    def read(self, pool: Pool) -> list[Fidelity]:
        """One line per model and agent. What was pruned since it was counted still counts. Raises PoolError."""
        with self._lock:
            newest = pool.cursor()
            for count in pool.forks(after=self._cursor, until=newest):
                self._counts[count.model, count.agent, count.fork, count.side] += count.steps
            self._cursor = newest
            kinds = sorted(self._counts.items())
        return fidelity(
            [
                ForkCount(model=model, agent=agent, fork=fork, side=side, steps=steps)
                for (model, agent, fork, side), steps in kinds
            ]
        )
