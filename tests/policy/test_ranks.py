"""What the processes of one learner tell each other."""

import pytest
import torch

from stepwell.errors import ConfigError
from stepwell.policy.ranks import ALONE, Place, joined
from tests.trainer.ranked import on_ranks
from tests.trainer.ranked_work import collected


def test_each_rank_learns_of_all() -> None:
    for total, largest, every, chosen, why in on_ranks(3, collected):
        assert total == [3.0, 3.0]
        assert largest == [2.0, 1.0]
        assert every == ["of 0", "of 1", "of 2"]
        assert chosen == 10
        assert why == "rank 0 refuses"


def test_alone_everything_is_as_it_is() -> None:
    assert collected(ALONE) == ([0.0, 1.0], [0.0, 1.0], ["of 0"], 10, "rank 0 refuses")
    ALONE.refuse_difference(lambda: 1 // 0)  # nobody to compare it with: it is not even computed


def test_one_rank_meets_nobody() -> None:
    with joined(Place(rank=0, count=1, address="tcp://nowhere:1")) as ranks:
        assert ranks is ALONE
        assert not torch.distributed.is_initialized()


def test_the_environment_of_torchrun_tells_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert Place.of_environment() == Place(rank=2, count=4, address="tcp://127.0.0.1:29500")
    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(ConfigError, match="WORLD_SIZE is not set"):
        Place.of_environment()
