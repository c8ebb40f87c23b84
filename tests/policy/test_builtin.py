"""Models that need no download."""

from pathlib import Path

import pytest
import torch

from stepwell.errors import NotFound
from stepwell.policy.builtin import resolve_model
from stepwell.policy.model import Policy


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def weights(seed: int) -> torch.Tensor:
    return Policy.load(resolve_model("lookup", seed), name="lookup").model.get_input_embeddings().weight


def test_a_model_made_here_is_the_same_for_the_same_seed_only() -> None:
    first = weights(0)
    assert torch.equal(first, weights(0))
    assert not torch.equal(first, weights(1))


def test_a_model_is_made_once(cache: Path) -> None:
    directory = resolve_model("lookup")
    stamp = (directory / "config.json").stat().st_mtime_ns
    assert resolve_model("lookup") == directory
    assert (directory / "config.json").stat().st_mtime_ns == stamp
    assert directory.is_relative_to(cache)


def test_a_directory_stands_for_itself_and_anything_else_is_refused_by_name(tmp_path: Path) -> None:
    assert resolve_model(str(tmp_path)) == tmp_path
    with pytest.raises(NotFound, match="lookup"):
        resolve_model("lookupp")
