"""Updates on their way to trackers: each has a thread of its own, so a slow or broken one costs the run nothing."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Final

from stepwell.cli.tracking.base import TrackedRun, TrackerConfig
from stepwell.scoring.base import FOREIGN, told
from stepwell.types import UpdateInfo

_log = logging.getLogger(__name__)
_PATIENCE: Final = 60.0
"""Seconds that a tracker has for what is left when the run ends."""


@contextmanager
def tracking(
    trackers: Sequence[TrackerConfig], run: TrackedRun, patience: float = _PATIENCE
) -> Iterator[Callable[[UpdateInfo], None]]:
    """Gives what hands an update to all `trackers`, for as long as the block lasts; it never waits and never fails.

    `patience`: seconds that they have, together, for what is left at its end.
    """
    feeds = [_Feed(config, run) for config in trackers]

    def hand_over(update: UpdateInfo) -> None:
        for feed in feeds:
            feed.updates.put(update)

    try:
        yield hand_over
    finally:
        for feed in feeds:
            feed.updates.put(None)
        for feed in feeds:
            feed.wait(patience / len(feeds))


class _Feed:
    """One tracker's."""

    def __init__(self, config: TrackerConfig, run: TrackedRun) -> None:
        self.updates: SimpleQueue[UpdateInfo | None] = SimpleQueue()
        """What is still to be written; None ends it."""
        self._config = config
        self._run = run
        self._failed = False
        self._thread = threading.Thread(target=self._work, name=f"stepwell-{self._name}", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> None:
        self._thread.join(seconds)
        if self._thread.is_alive():
            _log.warning("%s does not come to an end; what it has not written by now is in the pool", self._name)

    @property
    def _name(self) -> str:
        return type(self._config).__name__.removesuffix("Config")

    def _work(self) -> None:
        try:
            tracker = self._config.open(self._run)
        except FOREIGN as error:
            self._warn(f"cannot be opened, so the run is not tracked there: {told(error)}")
            return
        for update in iter(self.updates.get, None):
            try:
                tracker.write(update)
            except FOREIGN as error:
                self._warn(f"did not take update {update.policy_version}: {told(error)}")
        try:
            tracker.close()
        except FOREIGN as error:
            self._warn(f"cannot be closed: {told(error)}")

    def _warn(self, what: str) -> None:
        """Once: an update every second would fill the terminal with it."""
        if not self._failed:
            _log.warning("%s %s; training goes on, and the pool has every metric", self._name, what)
        self._failed = True
