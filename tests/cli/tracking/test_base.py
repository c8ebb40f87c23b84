"""What trackers are told of a run, and what is found out before it begins."""

import re
from pathlib import Path
from typing import ClassVar

import pytest

from stepwell.cli.tracking import TRACKERS, chosen_trackers
from stepwell.cli.tracking.base import TrackerConfig, tracked_run
from stepwell.errors import ConfigError, MissingDependency
from tests.cli.tracking.runs import run_in


class NeedsAbsent(TrackerConfig):
    package: ClassVar[str] = "no_such_package"
    extra: ClassVar[str] = "nothing"


def test_a_run_keeps_its_id_when_it_is_taken_up_again_and_shares_it_with_no_other(tmp_path: Path) -> None:
    first, again, other = (run_in(tmp_path / name) for name in ("a", "a", "b"))
    assert first == again
    assert first.id != other.id
    assert re.fullmatch("[a-z0-9-]+", first.id)
    assert first.title == f"tiny-{first.id[-6:]}"


def test_a_recipe_is_told_by_dotted_keys(tmp_path: Path) -> None:
    settings = {"name": "tiny", "learner.lr": 0.001, "learner.betas": "[0.9, 0.95]", "agent": "{}", "pool": "null"}
    assert run_in(tmp_path).settings == settings


def test_no_tracker_is_told_a_secret_of_the_recipe(tmp_path: Path) -> None:
    recipe = {
        "pool": "postgresql://trainer:hush@db/stepwell",
        "rewards": [{"use": "judge", "api_key": "hush"}],
        "agent": {"max_tokens": 6},
    }
    assert tracked_run("tiny", tmp_path, recipe).settings == {
        "pool": "postgresql://trainer:***@db/stepwell",
        "rewards": '[{"use": "judge", "api_key": "***"}]',
        "agent.max_tokens": 6,
    }


def test_a_tracker_whose_package_is_not_there_is_refused_with_the_extra_that_has_it() -> None:
    with pytest.raises(MissingDependency, match=r"no_such_package: pip install 'stepwell\[nothing\]'"):
        NeedsAbsent().check()


def test_a_folder_that_only_has_the_packages_name_is_not_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no_such_package").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingDependency):
        NeedsAbsent().check()


def test_an_unknown_tracker_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'tensorboard'"):
        chosen_trackers([{"use": "tensorbord"}])


def test_every_shipped_tracker_names_what_it_needs() -> None:
    assert all(kind.package and kind.extra == name for name, kind in TRACKERS.items())
