"""What the ranks of a learner do in tests; imported once for all of them."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stepwell.algorithms.base import Algorithm, Inputs, Sweep, Teacher, Tokenize
from stepwell.algorithms.objective import Objective
from stepwell.errors import InvalidRequest, NonFiniteUpdate
from stepwell.policy.model import Policy
from stepwell.policy.ranks import ALONE, Place, Ranks
from stepwell.policy.shards import whole
from stepwell.policy.snapshot import Snapshot
from stepwell.policy.weights import save_weights
from stepwell.trainer.checkpoint import Progress, load_checkpoint, load_snapshots, save_checkpoint
from stepwell.trainer.scoring import Scored, response_logprobs, state_values
from stepwell.trainer.sft import Demonstration, supervised_update
from stepwell.trainer.study import Study
from stepwell.trainer.sweep import sweep_update
from stepwell.trainer.together import Together, run_rank
from stepwell.trainer.update import Learner, LearnerConfig
from stepwell.types import Credit, Floats, Group, Ids, Sample
from tests.policy.exact import exact
from tests.policy.tiny import tiny_policy
from tests.trainer.builders import SHAPES, sampled

SHARED = (7, 3, 9, 4, 1, 2)


@dataclass(frozen=True)
class Case:
    """A policy in double precision, a learner, and what it trains on."""

    kind: str = "llama"
    policy: Mapping[str, Any] = field(default_factory=dict)
    learner: Mapping[str, Any] = field(default_factory=dict)
    objective: Objective = field(default_factory=Objective)
    samples: int = len(SHAPES)
    values: int = 1
    """In every sample but the first."""
    layers: int | None = None
    exact: bool = True


def made_learner(case: Case, ranks: Ranks = ALONE) -> Learner:
    """What begins at random begins otherwise on each rank."""
    policy = tiny_policy(case.kind, 0, case.layers, dict(case.policy))
    for parameter in policy.critic_parameters():
        parameter.data += ranks.rank
    if case.exact:
        exact(policy.model)
        exact(policy.critic)
    settings = {"lr": 1e-3, "critic_lr": 1e-2, "grad_clip": 0.5, "micro_batch_tokens": 20, **case.learner}
    return Learner(policy, LearnerConfig(**settings), ranks)


@cache
def batch(count: int, values: int) -> list[Sample]:
    """Somewhat off-policy; every other one begins as the others of these do."""
    start, made = tiny_policy("llama", seed=50), []
    for seed in range(count):
        beginning, supervised = SHARED if seed % 2 else (), values if seed else 0
        shape = SHAPES[seed % len(SHAPES)]
        made.append(sampled(start, *shape, seed, noise=0.1, values=supervised, beginning=beginning))
    wave = np.float32(0.2)
    return [replace(s, reference_logprobs=s.logprobs + wave * np.sin(np.arange(len(s.logprobs)))) for s in made]


def samples_of(case: Case) -> list[Sample]:
    return batch(case.samples, case.values)


Arrays = dict[str, np.ndarray]


def state_of(learner: Learner) -> Arrays:
    """Whole weights and moments, by name."""
    found = {name: whole(tensor).numpy().copy() for name, tensor in learner.policy.trainable_state().items()}
    for name, parameter in learner.policy.trained_parameters().items():
        for key, value in learner.optimizer.state.get(parameter, {}).items():
            found[f"{key} of {name}"] = whole(value).numpy().copy()
    return found


def scores(policy: Policy, case: Case) -> list[Floats]:
    """Log-probabilities of the responses, and values of the states after each token."""
    rows = [Scored.of(sample) for sample in samples_of(case)]
    ids = [sample.token_ids for sample in samples_of(case)]
    return [*response_logprobs(policy, rows, 20), *state_values(policy, ids, [0] * len(ids), 20)]


Outcome = tuple[Arrays, list[dict[str, float]], list[Floats]]


def trained(ranks: Ranks, case: Case) -> Outcome:
    """State and metrics after two updates of a learner, and the scores that it gives then."""
    learner = made_learner(case, ranks)
    metrics = [learner.update(samples_of(case), case.objective) for _ in range(2)]
    return state_of(learner), metrics, scores(learner.policy, case)


def all_trained(ranks: Ranks, cases: Mapping[str, Case]) -> dict[str, Outcome]:
    return {name: trained(ranks, case) for name, case in cases.items()}


def gone_on(ranks: Ranks, cases: Mapping[str, Case], folder: Path) -> dict[str, tuple[Arrays, list[Floats]]]:
    """Each case's learner goes on from its checkpoint for one update, with the teacher that it began with."""
    found = {}
    for name, case in cases.items():
        learner = made_learner(case, ranks)
        began = load_checkpoint(folder / name, learner.policy, learner.optimizer)
        kept = load_snapshots(folder / name, learner.policy) if began else {"teacher": Snapshot.of(learner.policy)}
        learner.update(samples_of(case), case.objective)
        progress = Progress(policy_version=learner.policy.version, lease_ids=(f"lease-{learner.policy.version}",))
        save_checkpoint(folder / name, learner.policy, learner.optimizer, progress, kept)
        with kept["teacher"].in_place(learner.policy):
            taught = scores(learner.policy, case)
        found[name] = state_of(learner), taught
    return found


def exported(ranks: Ranks, case: Case, folder: Path) -> Arrays:
    """Weights as `save_weights` wrote them are those there were."""
    learner = made_learner(case, ranks)
    save_weights(folder, learner.policy)
    return state_of(learner)


def _credits(group: Group, inputs: Inputs) -> list[Credit]:
    """Of all that an algorithm may read."""
    steps = [step for trajectory in group.trajectories for step in trajectory.steps]
    sums = {s.id: inputs.values[s.id][0] + (inputs.teacher_logprobs[s.id] - inputs.logprobs[s.id]).sum() for s in steps}
    return [
        Credit(
            step_id=s.id,
            advantages=np.full(len(s.response_ids), 1 - s.index + sums[s.id], np.float32),
            value_targets=np.full(1, s.index, np.float32),
        )
        for s in steps
    ]


def studied(ranks: Ranks, case: Case, groups: Sequence[Group], folder: Path) -> tuple[Arrays, dict[str, float]]:
    """A new process goes on from the checkpoint that there may be: state and metrics after an update of `groups`."""
    algorithm = Algorithm(
        name="reads everything",
        assign=_credits,
        needs_values="step",
        needs_logprobs=True,
        teacher=Teacher(prompts=_unhinted, refresh_every=2),
        whiten="step",
        objective=Objective(kl_coefficient=0.1, old_logprobs="trainer"),
    )
    study = Study(made_learner(case, ranks), algorithm, folder)
    study.load()
    metrics = study.learn(groups).metrics
    study.save(["lease"])
    (folder / f"by-{ranks.rank}").mkdir()
    told = study.write(folder / f"by-{ranks.rank}")
    return state_of(study.learner), metrics | {"probe": told.logprob}


def _unhinted(group: Group, _: Tokenize) -> dict[str, Ids]:
    return {step.id: step.prompt_ids for trajectory in group.trajectories for step in trajectory.steps}


def warmed_up(ranks: Ranks, case: Case) -> Arrays:
    learner = made_learner(case, ranks)
    mask = np.array([False, False, True, True, True, True])
    supervised_update(learner.policy, learner.optimizer, [Demonstration(np.array(SHARED, np.int32), mask)], 0.1)
    learner.policy.begin_critic()
    return state_of(learner)


def dtypes_in_a_pass(ranks: Ranks, case: Case) -> tuple[str, str, str]:
    """Of a layer's weight and the embedding's while they are used, and of the layer's afterwards."""
    policy = made_learner(case, ranks).policy
    product, seen = policy.stacks[0].layers[0].mlp.up_proj, []
    product.register_forward_pre_hook(lambda *_: seen.append(product.weight.dtype))
    policy.evaluated(lambda: seen.append(policy.model.get_input_embeddings().weight.dtype))
    scores(policy, case)
    return tuple(str(dtype).removeprefix("torch.") for dtype in (seen[1], seen[0], product.weight.dtype))


def swept(ranks: Ranks, case: Case) -> Arrays:
    """One turn after the other, each of which has fewer samples than there are ranks."""
    learner = made_learner(case, ranks)
    turns = [replace(s, index=i) for i, s in enumerate(samples_of(case))]
    sweep_update(learner, turns, case.objective, Sweep(order="reverse"))
    return state_of(learner)


def given_others(ranks: Ranks, case: Case) -> str:
    learner = made_learner(case, ranks)
    own = [replace(s, advantages=s.advantages + ranks.rank) for s in samples_of(case)]
    try:
        learner.update(own, case.objective)
    except InvalidRequest as error:
        return str(error)
    return ""


def poisoned(ranks: Ranks, case: Case) -> tuple[bool, str, float]:
    """Whether an update whose gradient is infinite on one rank changed a weight; why not; and what the next skipped."""
    learner = made_learner(case, ranks)
    before, good = state_of(learner), samples_of(case)
    bad = replace(good[0], step_id="bad", advantages=np.full(len(good[0].advantages), 3e38, np.float32))
    try:
        learner.update([bad], case.objective)
    except NonFiniteUpdate as error:
        changed = any((before[name] != now).any() for name, now in state_of(learner).items())
        cut = LearnerConfig(**{**learner.config.model_dump(), "minibatch_steps": 1})
        learner.config = cut
        return changed, str(error), learner.update([bad, *good], case.objective)["skipped_optimizer_steps"]
    return True, "", 0.0


def collected(ranks: Ranks) -> tuple[list[float], list[float], list[str], int, str]:
    """What the ranks tell each other."""
    own = torch.tensor([float(ranks.rank), 1.0])

    def refused() -> int:
        raise InvalidRequest(f"rank {ranks.rank} refuses")

    try:
        ranks.decided(refused)
        why = ""
    except InvalidRequest as error:
        why = str(error)
    chosen = ranks.decided(lambda: 10 + ranks.rank)
    return ranks.total(own).tolist(), ranks.largest(own).tolist(), ranks.exchanged(f"of {ranks.rank}"), chosen, why


def prepared(ranks: Ranks) -> Together:
    case = Case(objective=Objective(ratio="exact"), exact=False)
    learner = made_learner(case, ranks)

    def update(count: int, advantage: float) -> dict[str, float]:
        made = batch(count, case.values)
        return learner.update([replace(s, advantages=s.advantages * 0 + advantage) for s in made], case.objective)

    def die_on(rank: int) -> None:
        if ranks.rank == rank:
            os._exit(1)

    return Together(ranks, {"update": update, "state": lambda: state_of(learner), "die": die_on})


def leads_updates(together: Together) -> Arrays:
    together.call("update", 3, 1.0)
    try:
        together.call("update", 1, np.float32(3e38))
    except NonFiniteUpdate:
        together.call("update", 5, -1.0)
    return together.call("state")


def leads_to_a_mistake(together: Together) -> None:
    together.call("update", 3, 1.0)
    raise ValueError("nobody knows why")


def leads_to_a_death(together: Together, rank: int) -> None:
    together.call("die", rank)
    together.call("update", 3, 1.0)


def runs(place: Place, lead: Callable[..., Any], **options: Any) -> Any:
    return run_rank(place, prepared, partial(lead, **options))


def calls_out_of_turn(ranks: Ranks) -> str:
    together = prepared(ranks)
    if ranks.rank == 0:
        return ""
    try:
        together.call("state")
    except InvalidRequest as error:
        return str(error)
    return ""
