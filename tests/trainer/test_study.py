"""What is learnt from groups follows from them and the learner, on however many ranks."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from stepwell.policy.ranks import ALONE
from stepwell.pool.store import SQLitePool
from stepwell.types import Group
from tests.trainer.ranked import on_ranks
from tests.trainer.ranked_work import Case, studied
from tests.trainer.test_loop import group_records


@pytest.fixture
def groups(tmp_path: Path) -> list[Group]:
    pool = SQLitePool.open(tmp_path / "pool.sqlite")
    pool.put(*group_records("a"), *group_records("b"))
    made = [pool.group(name) for name in "ab"]
    pool.close()
    return made


def test_whatever_an_algorithm_reads_ranks_learn_what_one_does_and_go_on_with_another_number(
    tmp_path: Path, groups: list[Group]
) -> None:
    """With a critic, a reference and a teacher, which the checkpoints of two ranks, of one, and of two again hold."""
    case = Case()
    for count in (2, 1, 2):
        for name in ("alone", "together"):
            for left in (tmp_path / name).glob("by-*"):
                shutil.rmtree(left)
        state, metrics = studied(ALONE, case, groups, tmp_path / "alone")
        where = case, groups, tmp_path / "together"
        for got, told in on_ranks(count, studied, *where) if count > 1 else [studied(ALONE, *where)]:
            for key, array in state.items():
                np.testing.assert_allclose(got[key], array, rtol=1e-6, atol=1e-6, err_msg=key)
            for key in ("policy_loss", "value_loss", "grad_norm", "teacher_version", "probe"):
                assert told[key] == pytest.approx(metrics[key], rel=1e-4, abs=1e-6), key
        assert metrics["grad_norm"] > 0
