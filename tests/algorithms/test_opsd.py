"""On-policy self-distillation, alone and as AgentOPSD's belief over turns, on hand-made groups."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.algorithms.agentopsd import AgentOPSD, belief_revisions, turn_weights
from stepwell.algorithms.base import Inputs
from stepwell.algorithms.grpo import GRPO
from stepwell.algorithms.hindsight import Hindsight, HindsightForAll
from stepwell.algorithms.opsd import OPSD
from stepwell.config import load_config
from stepwell.errors import ConfigError, InvalidRecord
from stepwell.types import Credit, Group
from tests.algorithms.builders import make_group, make_trajectory, tokenize

evidence = st.lists(st.floats(-8, 8), min_size=1, max_size=6)
priors = st.floats(0.01, 0.99)


def mixed_group() -> Group:
    return make_group(
        make_trajectory("bad", [2, 2, 2], [0.0, 0.0, 0.0]),
        make_trajectory("good", [2], [1.0]),
    )


def with_gaps(group: Group, gaps: dict[str, list[float]]) -> Inputs:
    """The student says 0 of every token, the teacher its gap."""
    steps = [step for trajectory in group.trajectories for step in trajectory.steps]
    return Inputs(
        logprobs={step.id: np.zeros(len(step.response_ids), np.float32) for step in steps},
        teacher_logprobs={name: np.array(gap, np.float32) for name, gap in gaps.items()},
    )


def credits(config: OPSD | AgentOPSD | GRPO, group: Group, inputs: Inputs) -> dict[str, Credit]:
    return {credit.step_id: credit for credit in config.build().assign(group, inputs)}


GAPS = {"bad-0": [0.5, -0.25], "bad-1": [9.0, -9.0], "bad-2": [0.0, 1.0]}


def test_an_advantage_is_the_clipped_gap_and_only_what_has_a_hint_is_trained() -> None:
    got = credits(OPSD(), mixed_group(), with_gaps(mixed_group(), GAPS))
    assert got["bad-0"].advantages.tolist() == [0.5, -0.25]
    assert got["bad-1"].advantages.tolist() == [5.0, -5.0]
    assert got["bad-2"].advantages.tolist() == [0.0, 1.0]
    assert not got["good-0"].trained
    assert all(got[name].trained for name in GAPS)


def test_unlike_stepopsd_it_pushes_groups_without_any_advantage_and_against_the_outcome() -> None:
    group = make_group(make_trajectory("a", [1], [1.0]), make_trajectory("b", [1], [1.0]))
    assert list(OPSD().build().teacher.prompts(group, tokenize)) == ["a-0", "b-0"]
    got = credits(OPSD(), group, with_gaps(group, {"a-0": [-1.0], "b-0": [2.0]}))
    assert [got["a-0"].advantages[0], got["b-0"].advantages[0]] == [-1.0, 2.0]


@pytest.mark.parametrize(("teacher", "refreshed"), [("current", 0), ("initial", 10**12)])
def test_the_teacher_is_the_current_policy_or_never_taken_anew(teacher, refreshed) -> None:
    assert OPSD(teacher=teacher).build().teacher.refresh_every >= refreshed
    assert bool(OPSD(teacher=teacher).build().teacher.refresh_every) == bool(refreshed)


@pytest.mark.parametrize("config", [OPSD(), AgentOPSD()])
def test_a_score_that_is_missing_is_an_error_and_not_a_gap_of_0(config) -> None:
    group = mixed_group()
    some = {name: gap for name, gap in GAPS.items() if name != "bad-1"}
    with pytest.raises(InvalidRecord, match="bad-1: a missing gap is not 0"):
        credits(config, group, with_gaps(group, some))


@pytest.mark.parametrize("config", [OPSD(), AgentOPSD()])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_score_that_is_not_finite_is_refused(config, bad) -> None:
    with pytest.raises(InvalidRecord, match="NaN or infinite"):
        credits(config, mixed_group(), with_gaps(mixed_group(), {**GAPS, "bad-0": [0.0, bad]}))


@given(evidence, priors)
def test_without_forgetting_revisions_add_up_to_the_last_belief_minus_the_prior(turns, prior) -> None:
    odds = math.log(prior / (1 - prior)) + sum(turns)
    revisions = belief_revisions(turns, prior=prior, decay=1.0)
    assert revisions.sum() == pytest.approx(1 / (1 + math.exp(-odds)) - prior, abs=1e-9)


@given(evidence, priors, st.floats(0, 1))
def test_a_belief_follows_its_recursion(turns, prior, decay) -> None:
    gathered, before, wanted = 0.0, prior, []
    for turn in turns:
        gathered = decay * gathered + turn
        now = 1 / (1 + math.exp(-(math.log(prior / (1 - prior)) + gathered)))
        wanted.append(now - before)
        before = now
    np.testing.assert_allclose(belief_revisions(turns, prior=prior, decay=decay), wanted, atol=1e-9)


@pytest.mark.parametrize("prior", [0.0, 1.0])
def test_a_prior_of_certainty_and_endless_evidence_stay_finite(prior) -> None:
    assert np.isfinite(belief_revisions([1e4, -1e4, 20.0], prior=prior, decay=0.95)).all()


@given(evidence.filter(lambda turns: len(turns) > 1), priors, st.floats(0, 0.99), st.sampled_from([1.0, -1.0]))
def test_turn_weights_are_within_the_band_and_mirrored_by_the_sign(turns, prior, band, sign) -> None:
    revisions = belief_revisions(turns, prior=prior, decay=0.95)
    weights = turn_weights(revisions, sign, band)
    assert (np.abs(weights - 1) <= band + 1e-12).all()
    np.testing.assert_allclose(weights + turn_weights(revisions, -sign, band), 2, atol=1e-9)


def test_a_turn_that_moved_the_belief_with_the_outcome_counts_more_for_every_one_of_its_tokens() -> None:
    group = mixed_group()
    got = credits(AgentOPSD(), group, with_gaps(group, {"bad-0": [-1.0, -1.0], "bad-1": [0.0, 0.0], "bad-2": [1, 1]}))
    plain = credits(GRPO(), group, Inputs())["bad-0"].advantages[0]
    shares = [got[f"bad-{index}"].advantages / plain for index in range(3)]
    assert all(np.ptp(share) == 0 for share in shares)
    # belief falls, stays nearly, rises; λ = 1/2 and band 0.2, so 10 % more and 10 % less
    assert shares[0][0] == pytest.approx(1.1, rel=1e-5)
    assert shares[0][0] > shares[1][0] > shares[2][0] > 0.89
    assert got["good-0"].advantages.tolist() == credits(GRPO(), group, Inputs())["good-0"].advantages.tolist()


def test_without_mixing_or_evidence_it_is_grpo() -> None:
    group = mixed_group()
    plain = credits(GRPO(), group, Inputs())
    assert credits(AgentOPSD(mixing=0.0), group, with_gaps(group, GAPS)) == plain
    none = {name: [0.0, 0.0] for name in GAPS}
    assert credits(AgentOPSD(decay=1.0), group, with_gaps(group, none)) == plain
    assert AgentOPSD(mixing=0.0).build().teacher is None
    assert not AgentOPSD(mixing=0.0).build().needs_logprobs
    assert AgentOPSD(hindsight=HindsightForAll(told="nothing")).build().teacher.prompts(group, tokenize) == {}


def test_settings_of_hindsight_leave_who_is_told_as_the_algorithm_has_it() -> None:
    assert OPSD.model_validate({"hindsight": {"outcome": True}}).hindsight.peer_for == "all"
    assert Hindsight(outcome=True).peer_for == "failed"


def test_distillation_from_a_teacher_that_is_told_nothing_is_refused_and_of_the_outcome_alone_is_not() -> None:
    with pytest.raises(ConfigError, match="told nothing trains nothing"):
        load_config(OPSD, None, ["hindsight.told=nothing"])
    assert load_config(OPSD, None, ["hindsight.told=nothing", "hindsight.outcome=true"]).hindsight.outcome
