"""W&B, offline: what it wrote is read back from its own files."""

from pathlib import Path

import pytest

from stepwell.cli.tracking.wandb import WandbConfig
from tests.cli.tracking.runs import run_in, track

wandb = pytest.importorskip("wandb", reason="wandb brings a binary of 80 MB: pip install wandb")


def test_offline_a_run_and_its_resumption_are_parts_of_one_id(tmp_path: Path) -> None:
    track(WandbConfig(mode="offline"), tmp_path, 1, 2)
    track(WandbConfig(mode="offline"), tmp_path, 3)
    files = sorted((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert [file.name for file in files] == [f"run-{run_in(tmp_path).id}.wandb"] * 2
    assert b"reward_mean" in files[0].read_bytes()


def test_without_a_key_the_run_is_not_tracked_and_nobody_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    track(WandbConfig(), tmp_path, 1)
    assert "set WANDB_API_KEY or mode: offline" in caplog.text
