"""From credit to tensors, against computations that are naive on purpose."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.algorithms.base import Objective
from stepwell.errors import InvalidRecord
from stepwell.trainer.collate import MicroBatch, make_samples, micro_batches, token_weights, whiten
from stepwell.types import Credit, Sample, Step
from tests.algorithms.builders import make_group, make_step, make_trajectory
from tests.trainer.builders import make_sample

AGGREGATIONS = ["per_step", "per_trajectory", "per_token"]
every_aggregation = pytest.mark.parametrize("aggregation", AGGREGATIONS)


@st.composite
def sample_lists(draw: st.DrawFn) -> list[Sample]:
    """Up to seven samples of up to three trajectories, with no critic, one at each step, or one at each token.

    Some begin alike, as the prompts of one system message do.
    """
    samples, beginning = [], draw(st.sampled_from([(), (9,), (9, 8, 7, 6, 5, 4)]))
    for number in range(draw(st.integers(1, 7))):
        name = f"{draw(st.sampled_from('abc'))}{number}"
        prompt, response = draw(st.integers(1, 6)), draw(st.integers(1, 4))
        values = draw(st.sampled_from([0, 1, response]))
        advantage = draw(st.integers(-5, 5))
        samples.append(make_sample(name, prompt, response, advantage=advantage, values=values, beginning=beginning))
    return samples


# make_samples


def group_of(*steps: Step):
    trajectory = make_trajectory("t", [1] * len(steps), [0.0] * len(steps))
    return make_group(replace(trajectory, steps=steps))


def credit_for(*steps: Step) -> dict[str, Credit]:
    return {step.id: Credit(step_id=step.id, advantages=np.ones(len(step.response_ids))) for step in steps}


def test_a_sample_holds_its_steps_tokens_and_credit_as_they_were() -> None:
    step = replace(make_step("t", 0, 2), response_ids=[7, 8], logprobs=[-0.5, -0.25])
    credit = Credit(step_id=step.id, advantages=[1.0, 2.0], value_targets=[3.0])
    (sample,) = make_samples([group_of(step)], {step.id: credit}, {step.id: np.array([0.75], np.float32)})
    assert (sample.step_id, sample.trajectory_id) == (step.id, "t")
    assert sample.token_ids.tolist() == [1, 2, 3, 7, 8]
    assert sample.prompt_length == 3
    assert sample.logprobs.tolist() == [-0.5, -0.25]
    assert sample.advantages.tolist() == [1.0, 2.0]
    assert sample.value_targets.tolist() == [3.0]
    assert sample.old_values.tolist() == [0.75]


@pytest.mark.parametrize(("temperature", "scale"), [(1.0, 1.0), (0.6, 0.6), (0.0, 1.0)])
def test_a_sample_keeps_the_temperature_at_which_its_logprobs_hold(temperature: float, scale: float) -> None:
    step = make_step("t", 0)
    step = replace(step, sampling=replace(step.sampling, temperature=temperature))
    assert make_samples([group_of(step)], credit_for(step), {})[0].temperature == scale


@pytest.mark.parametrize("odd", [{"token_source": "text"}, {"finish_reason": "abort"}, {"tokens": 0}])
def test_a_step_that_cannot_be_trained_on_makes_no_sample_with_credit_or_without(odd: dict) -> None:
    good, bad = make_step("t", 0), make_step("t", 1, **odd)
    for credits in (credit_for(good, bad), credit_for(good)):
        assert [s.step_id for s in make_samples([group_of(good, bad)], credits, {})] == [good.id]


def test_a_step_that_was_cut_at_max_tokens_is_trained_on() -> None:
    step = make_step("t", 0, finish_reason="length")
    assert len(make_samples([group_of(step)], credit_for(step), {})) == 1


def test_a_trainable_step_without_credit_is_an_error_that_names_it() -> None:
    with pytest.raises(InvalidRecord, match="t-0"):
        make_samples([group_of(make_step("t", 0))], {}, {})


@pytest.mark.parametrize("tokens", [1, 3])
def test_credit_for_another_number_of_tokens_is_an_error(tokens: int) -> None:
    step = make_step("t", 0, 2)
    with pytest.raises(InvalidRecord, match="advantages"):
        make_samples([group_of(step)], {step.id: Credit(step_id=step.id, advantages=np.ones(tokens))}, {})


def test_a_critics_target_for_a_step_that_no_critic_read_is_an_error() -> None:
    step = make_step("t", 0, 2)
    with pytest.raises(InvalidRecord, match="critic"):
        make_samples([group_of(step)], {step.id: Credit(step_id=step.id, advantages=[1, 1], value_targets=[1])}, {})


def test_samples_come_in_the_order_of_groups_trajectories_and_steps() -> None:
    groups = [make_group(make_trajectory(name, [1, 2], [0.0, 0.0])) for name in ("b", "a")]
    steps = [s for group in groups for t in group.trajectories for s in t.steps]
    assert [s.step_id for s in make_samples(groups, credit_for(*steps), {})] == ["b-0", "b-1", "a-0", "a-1"]


# whiten


@given(sample_lists(), st.sampled_from(["step", "token"]))
def test_whitened_advantages_have_mean_0_and_deviation_1_over_their_scope(samples, scope) -> None:
    units = [float(a) for s in samples for a in (s.advantages if scope == "token" else s.advantages[:1])]
    white = whiten(samples, scope)
    after = [float(a) for s in white for a in (s.advantages if scope == "token" else s.advantages[:1])]
    if len(units) < 2:
        assert after == units
    elif len(set(units)) == 1:
        assert after == [0.0] * len(units)
    else:
        assert np.mean(after) == pytest.approx(0, abs=1e-5)
        assert np.std(after, ddof=1) == pytest.approx(1, abs=1e-4)


@given(sample_lists())
def test_whitening_leaves_everything_but_advantages_alone(samples) -> None:
    for before, after in zip(samples, whiten(samples, "step"), strict=True):
        assert replace(after, advantages=before.advantages) == before
    assert whiten(samples, "none") == samples


@given(sample_lists(), st.randoms(use_true_random=False))
def test_whitening_does_not_depend_on_the_order_of_samples(samples, random) -> None:
    order = list(range(len(samples)))
    random.shuffle(order)
    straight, mixed = whiten(samples, "token"), whiten([samples[i] for i in order], "token")
    for position, i in enumerate(order):
        np.testing.assert_allclose(mixed[position].advantages, straight[i].advantages, atol=1e-5)


def test_by_step_a_long_step_weighs_as_much_as_a_short_one() -> None:
    short, long = make_sample("a", response=1, advantage=0.0), make_sample("b", response=9, advantage=2.0)
    # mean 1 and deviation √2 over the two steps; over the ten tokens the mean is 1.8
    by_step = [float(s.advantages[0]) for s in whiten([short, long], "step")]
    assert by_step == pytest.approx([-1 / np.sqrt(2), 1 / np.sqrt(2)])
    by_token = [float(s.advantages[0]) for s in whiten([short, long], "token")]
    assert by_token == pytest.approx([-1.8 / np.sqrt(0.4), 0.2 / np.sqrt(0.4)])


@given(st.lists(st.integers(-5, 5), min_size=2, max_size=7))
def test_where_every_step_has_one_token_both_scopes_are_the_same(advantages) -> None:
    samples = [make_sample(f"a{i}", response=1, advantage=a) for i, a in enumerate(advantages)]
    assert whiten(samples, "step") == whiten(samples, "token")


def test_nothing_to_whiten_gives_nothing() -> None:
    assert whiten([], "step") == []


# token_weights


@every_aggregation
@given(samples=sample_lists())
def test_the_weights_of_all_tokens_sum_to_1(aggregation, samples) -> None:
    weights = token_weights(samples, aggregation)
    assert [len(w) for w in weights] == [len(s.advantages) for s in samples]
    assert sum(float(w.sum()) for w in weights) == pytest.approx(1, abs=1e-5)


@given(sample_lists())
def test_what_counts_equally_is_what_the_aggregation_names(samples) -> None:
    tokens = np.concatenate(token_weights(samples, "per_token"))
    np.testing.assert_allclose(tokens, tokens[0])

    steps = [float(w.sum()) for w in token_weights(samples, "per_step")]
    np.testing.assert_allclose(steps, 1 / len(samples), rtol=1e-5)

    of_trajectory: dict[str, list[float]] = {}
    for sample, weights in zip(samples, token_weights(samples, "per_trajectory"), strict=True):
        np.testing.assert_allclose(weights, weights[0])
        of_trajectory.setdefault(sample.trajectory_id, []).append(float(weights.sum()))
    for parts in of_trajectory.values():
        np.testing.assert_allclose(parts, 1 / len(of_trajectory) / len(parts), rtol=1e-5)


def test_weights_of_a_worked_example() -> None:
    samples = [make_sample("a0", response=1), make_sample("a1", response=3), make_sample("b0", response=4)]
    assert [w.tolist() for w in token_weights(samples, "per_token")] == [[0.125] * 1, [0.125] * 3, [0.125] * 4]
    by_step = [w[0] for w in token_weights(samples, "per_step")]
    assert by_step == pytest.approx([1 / 3, 1 / 9, 1 / 12])
    by_trajectory = [w[0] for w in token_weights(samples, "per_trajectory")]
    assert by_trajectory == pytest.approx([1 / 4, 1 / 12, 1 / 8])


# pack


TOKEN_COLUMNS = ("logprobs", "advantages", "weights")
VALUE_COLUMNS = ("value_targets", "old_values", "value_weights")


def unpacked(batches: list[MicroBatch], samples: list[Sample]) -> list[dict]:
    """Each row of each batch as if nothing was merged: places of the tree become those of the row."""
    rows = []
    for batch in batches:
        stops = np.cumsum([len(samples[i].value_targets) for i in batch.samples])
        supervised = [slice(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]
        for number in range(len(batch.samples)):
            path = batch.plan.tree.places(number).tolist()
            inside, values = batch.row == number, supervised[number]
            row = {
                "ids": batch.ids[path].tolist(),
                "positions": batch.positions[path].tolist(),
                "predicting": [path.index(at) for at in batch.read[batch.predicting[inside]].tolist()],
                "targets": batch.targets[inside].tolist(),
                "value_at": [path.index(at) for at in batch.value_at[values].tolist()],
                "temperatures": batch.scales[batch.predicting[inside]].tolist(),
            }
            row |= {name: getattr(batch, name)[inside].tolist() for name in TOKEN_COLUMNS}
            row |= {name: getattr(batch, name)[values].tolist() for name in VALUE_COLUMNS}
            rows.append(row)
        assert [row.tolist() for row in batch.rows()] == [row["ids"] for row in rows[-len(batch.samples) :]]
    return rows


def naive_row(sample: Sample, weight: np.ndarray, all_values: int) -> dict:
    tokens, first = len(sample.token_ids), sample.prompt_length
    return {
        "ids": sample.token_ids.tolist(),
        "positions": list(range(tokens)),
        "predicting": [position - 1 for position in range(first, tokens)],
        "targets": [int(sample.token_ids[position]) for position in range(first, tokens)],
        "value_at": [first - 1 + k for k in range(len(sample.value_targets))],
        "logprobs": sample.logprobs.tolist(),
        "advantages": sample.advantages.tolist(),
        "weights": weight.tolist(),
        "temperatures": [sample.temperature] * (tokens - first),
        "value_targets": sample.value_targets.tolist(),
        "old_values": sample.old_values.tolist(),
        "value_weights": np.full(len(sample.value_targets), 1 / max(all_values, 1), np.float32).tolist(),
    }


every_merging = st.sampled_from(["auto", "on", "off"])


@given(sample_lists(), st.integers(1, 40), st.sampled_from(AGGREGATIONS), every_merging)
def test_packing_keeps_every_sample_once_with_all_that_belongs_to_it(samples, budget, aggregation, merging) -> None:
    objective = Objective(aggregation=aggregation)
    all_values = sum(len(s.value_targets) for s in samples)
    expected = [naive_row(s, w, all_values) for s, w in zip(samples, token_weights(samples, aggregation), strict=True)]
    batches, _ = micro_batches(samples, objective, budget, merging)
    assert sorted(unpacked(batches, samples), key=repr) == sorted(expected, key=repr)
    assert sorted(i for batch in batches for i in batch.samples) == list(range(len(samples)))


@given(sample_lists(), st.integers(1, 40), every_merging)
def test_a_micro_batch_keeps_to_the_budget_unless_it_is_one_longer_sample(samples, budget, merging) -> None:
    for batch in micro_batches(samples, Objective(), budget, merging)[0]:
        assert len(batch.ids) <= budget or len(batch.samples) == 1


def test_what_samples_begin_with_is_laid_down_once_per_micro_batch() -> None:
    samples = [make_sample(name, 2, 1, beginning=range(30)) for name in ("a", "b", "c", "d")]
    for i, sample in enumerate(samples):
        sample.token_ids.setflags(write=True)
        sample.token_ids[30:] = 100 + i
    batches, packing = micro_batches(samples, Objective(), 36)
    assert [len(batch.ids) for batch in batches] == [36, 36]
    assert (packing.flat_tokens, packing.tokens) == (4 * 33, 72)


def test_rows_that_read_one_place_have_its_logits_once_unless_their_temperatures_differ() -> None:
    twins = [make_sample("a", 3, 2, beginning=range(30))] * 2
    (batch,), _ = micro_batches(twins, Objective(), 1000)
    assert len(batch.ids) == 35
    assert batch.read.tolist() == [32, 33]
    assert batch.predicting.tolist() == [0, 1, 0, 1]
    (batch,), _ = micro_batches([twins[0], replace(twins[1], temperature=0.5)], Objective(), 1000)
    assert batch.read.tolist() == [32, 32, 33, 33]
    assert batch.scales.tolist() == [0.5, 1.0, 0.5, 1.0]
    assert batch.scales[batch.predicting].tolist() == [1.0, 1.0, 0.5, 0.5]


@given(sample_lists(), st.integers(1, 40))
def test_value_weights_sum_to_1_wherever_there_is_a_critic(samples, budget) -> None:
    batches, _ = micro_batches(samples, Objective(), budget)
    total = sum(float(batch.value_weights.sum()) for batch in batches)
    assert total == pytest.approx(1.0 if any(len(s.value_targets) for s in samples) else 0.0, abs=1e-5)
