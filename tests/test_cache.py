"""What is made once appears whole or not at all."""

import threading
from pathlib import Path

import pytest

from stepwell.cache import cache_directory, cached


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_folder_is_built_once(cache: Path) -> None:
    builds: list[Path] = []

    def build(folder: Path) -> None:
        builds.append(folder)
        (folder / "data").write_text("whole")

    assert cached("set", build) == cached("set", build) == cache / "set"
    assert len(builds) == 1
    assert (cache / "set" / "data").read_text() == "whole"


def test_a_build_that_fails_leaves_nothing(cache: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "data").write_text("half")
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError):
        cached("set", build)
    assert list(cache.iterdir()) == []


def test_two_builds_at_once_leave_one_whole_folder(cache: Path) -> None:
    both_building = threading.Barrier(2, timeout=30)
    found: list[Path] = []

    def build(folder: Path) -> None:
        (folder / "data").write_text("whole")
        both_building.wait()

    threads = [threading.Thread(target=lambda: found.append(cached("set", build))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [cache / "set"] * 2
    assert [entry.name for entry in cache.iterdir()] == ["set"]
    assert (cache / "set" / "data").read_text() == "whole"


def test_the_cache_is_in_the_home_folder_unless_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("STEPWELL_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "stepwell"
