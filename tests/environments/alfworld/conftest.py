"""Games of our own, made once for all tests of ALFWorld. Without the package these tests are skipped."""

from pathlib import Path

import pytest

from stepwell.environments.alfworld import TASK_TYPES, AlfWorld, AlfWorldConfig, make_games

SEED = 7


@pytest.fixture(scope="session")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a game of each type, and a few to test on."""
    pytest.importorskip("alfworld", reason="needs: pip install 'stepwell[alfworld]'")
    folder = tmp_path_factory.mktemp("alfworld")
    make_games(folder, len(TASK_TYPES), seed=SEED)
    make_games(folder, 1, ["pick_and_place_simple"], SEED, split="valid_seen")
    make_games(folder, 1, ["look_at_obj_in_light"], SEED, split="valid_unseen")
    return folder


@pytest.fixture(scope="session")
def task_set(games: Path) -> AlfWorld:
    return AlfWorldConfig(path=games).build()
