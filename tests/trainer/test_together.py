"""The first rank leads, the others follow; whoever dies does not leave the rest waiting."""

from functools import partial

import numpy as np
import pytest

from stepwell.policy.ranks import Place
from tests.trainer.ranked import Failed, on_places, on_ranks
from tests.trainer.ranked_work import (
    calls_out_of_turn,
    leads_to_a_death,
    leads_to_a_mistake,
    leads_updates,
    runs,
)


def test_what_the_first_rank_calls_all_call_and_a_refused_update_is_not_the_end() -> None:
    alone = runs(Place(rank=0, count=1, address=""), leads_updates)
    state, *others = on_places(3, runs, leads_updates)
    assert others == [None, None]
    for name, array in alone.items():
        np.testing.assert_allclose(state[name], array, atol=1e-4, err_msg=name)


def test_when_the_first_rank_fails_the_others_go() -> None:
    first, other = on_places(2, runs, leads_to_a_mistake)
    assert "nobody knows why" in first.why
    assert other is None


@pytest.mark.parametrize("rank", [0, 1])
def test_when_a_rank_dies_the_others_fail(rank: int) -> None:
    outcomes = on_places(2, partial(runs, rank=rank), leads_to_a_death)
    assert outcomes[rank] == Failed("")
    assert outcomes[1 - rank].why.startswith(f"rank {1 - rank}: ")


def test_only_the_first_rank_leads() -> None:
    _, why = on_ranks(2, calls_out_of_turn)
    assert "only the first rank" in why
