"""Updates on their way to trackers: a tracker cannot harm a run."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepwell.cli.tracking.base import TrackedRun, Tracker, TrackerConfig
from stepwell.cli.tracking.feed import tracking
from stepwell.types import UpdateInfo
from tests.cli.tracking.runs import run_in, update


class Kept(TrackerConfig):
    """Keeps versions in a list; `act` is called before each, and before the end with None."""

    versions: list[Any] = []  # noqa: RUF012  # pydantic copies it
    act: Callable[[int | None], None] = lambda _: None

    def open(self, run: TrackedRun) -> Tracker:
        return self.model_copy(update={"versions": self.versions})  # type: ignore[return-value]

    def write(self, update: UpdateInfo) -> None:
        self.act(update.policy_version)
        self.versions.append(update.policy_version)

    def close(self) -> None:
        self.act(None)
        self.versions.append("closed")


class Unopened(TrackerConfig):
    def open(self, run: TrackedRun) -> Tracker:
        raise SystemExit("not logged in")


def fails(version: int | None) -> None:
    if version != 2:
        raise OSError("no route")


def test_every_update_reaches_every_tracker_in_order_before_the_block_ends(tmp_path: Path) -> None:
    first, second = Kept(), Kept()
    with tracking([first, second], run_in(tmp_path)) as hand_over:
        for version in (1, 2, 3):
            hand_over(update(version))
    assert first.versions == second.versions == [1, 2, 3, "closed"]


def test_a_tracker_that_fails_is_told_once_and_gets_the_next_update_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken, sound = Kept(act=fails), Kept()
    with tracking([broken, sound], run_in(tmp_path)) as hand_over:
        for version in (1, 2, 3):
            hand_over(update(version))
    assert (broken.versions, sound.versions) == ([2], [1, 2, 3, "closed"])
    assert [r.message for r in caplog.records if r.levelno == logging.WARNING] == [
        "Kept did not take update 1: OSError: no route; training goes on, and the pool has every metric"
    ]


def test_a_tracker_that_cannot_be_opened_is_told_and_leaves_the_run_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with tracking([Unopened()], run_in(tmp_path)) as hand_over:
        hand_over(update(1))
    (message,) = caplog.messages
    assert "Unopened cannot be opened, so the run is not tracked there: SystemExit: not logged in" in message


def test_a_tracker_that_hangs_is_left_behind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()
    with tracking([Kept(act=lambda _: release.wait() and None)], run_in(tmp_path), patience=0.01) as hand_over:
        hand_over(update(1))
    assert "Kept does not come to an end" in caplog.text
    release.set()


def test_trackers_are_closed_when_the_run_fails(tmp_path: Path) -> None:
    kept = Kept()

    def fail() -> None:
        with tracking([kept], run_in(tmp_path)) as hand_over:
            hand_over(update(1))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert kept.versions == [1, "closed"]
