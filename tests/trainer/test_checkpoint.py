"""Checkpoints: a killed run goes on as if it had not been killed."""

from pathlib import Path

import pytest
import torch

from stepwell.algorithms.base import Objective
from stepwell.errors import ConfigError
from stepwell.policy.model import Policy
from stepwell.policy.snapshot import Snapshot
from stepwell.policy.weights import checkpoints
from stepwell.trainer import checkpoint as module
from stepwell.trainer.checkpoint import Progress, load_checkpoint, load_snapshots, save_checkpoint
from stepwell.trainer.update import Learner
from tests.policy.tiny import tiny_policy
from tests.trainer.builders import SHAPES, make_learner, sampled


def train(learner: Learner, updates: int = 1) -> None:
    for _ in range(updates):
        start = tiny_policy(seed=50)
        samples = [sampled(start, *shape, seed, values=1) for seed, shape in enumerate(SHAPES)]
        learner.update(samples, Objective(ratio="geo"))


def state_of(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in policy.trainable_state().items()}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def save(folder: Path, learner: Learner, *lease_ids: str) -> Path:
    progress = Progress(policy_version=learner.policy.version, lease_ids=lease_ids)
    return save_checkpoint(folder, learner.policy, learner.optimizer, progress)


def load(folder: Path, learner: Learner) -> Progress | None:
    return load_checkpoint(folder, learner.policy, learner.optimizer)


@pytest.mark.parametrize("layers", [None, 1])
def test_a_run_that_went_on_from_a_checkpoint_is_where_the_uninterrupted_one_is(tmp_path: Path, layers) -> None:
    straight = make_learner(tiny_policy(trainable_layers=layers))
    train(straight, 2)
    save(tmp_path, straight, "lease-1", "lease-2")
    resumed = make_learner(tiny_policy(seed=0, trainable_layers=layers))
    assert load(tmp_path, resumed) == Progress(policy_version=2, lease_ids=("lease-1", "lease-2"))
    assert resumed.policy.version == 2
    assert same(state_of(resumed.policy), state_of(straight.policy))
    train(straight)
    train(resumed)
    assert same(state_of(resumed.policy), state_of(straight.policy))


@pytest.mark.parametrize(
    "settings", [{"lora": {"rank": 2}}, {"critic": "model"}, {"critic": "shared"}], ids=["lora", "model", "shared"]
)
def test_whatever_is_trained_a_resumed_run_is_bit_for_bit_where_the_uninterrupted_one_is(
    tmp_path: Path, settings: dict
) -> None:
    cut = {"epochs": 2, "minibatch_steps": 2, "schedule": "cosine", "schedule_updates": 9}
    straight = make_learner(tiny_policy(settings=settings), **cut)
    train(straight, 2)
    save(tmp_path, straight)
    resumed = make_learner(tiny_policy(settings=settings), **cut)
    load(tmp_path, resumed)
    train(straight)
    train(resumed)
    assert same(state_of(resumed.policy), state_of(straight.policy))


def test_snapshots_come_back_with_their_versions(tmp_path: Path) -> None:
    learner = make_learner(tiny_policy())
    taken = Snapshot.of(learner.policy)
    train(learner, 3)
    progress = Progress(policy_version=3)
    save_checkpoint(tmp_path, learner.policy, learner.optimizer, progress, {"teacher": taken})
    found = load_snapshots(tmp_path)
    assert list(found) == ["teacher"]
    assert found["teacher"].version == 0
    assert same(found["teacher"].state, taken.state)
    assert load_snapshots(tmp_path / "nowhere") == {}


def test_without_a_checkpoint_nothing_is_loaded(tmp_path: Path) -> None:
    learner = make_learner(tiny_policy())
    before = state_of(learner.policy)
    assert load(tmp_path / "nowhere", learner) is None
    (tmp_path / ".000007.partial").mkdir()
    assert load(tmp_path, learner) is None
    assert same(state_of(learner.policy), before)
    assert learner.policy.version == 0


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    learner = make_learner(tiny_policy())
    for version in (1, 2, 9, 10):
        learner.policy.version = version
        save(tmp_path, learner)
    assert [path.name for path in checkpoints(tmp_path)] == ["000009", "000010"]


class Killed(BaseException):
    """Stands for the death of the process."""


@pytest.mark.parametrize("after", range(7))
def test_a_kill_at_any_moment_of_writing_leaves_a_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Dies at the `after`-th of the moments at which something reached the disk: the weights, three files, a folder."""
    learner = make_learner(tiny_policy())
    train(learner)
    save(tmp_path, learner, "lease-1")
    first = state_of(learner.policy)
    train(learner)
    moments = []

    def mortal(function):
        def call(*arguments, **options):
            moments.append(function.__name__)
            if len(moments) == after + 1:
                raise Killed
            return function(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for owner, name in ((module, "save_weights"), (module.torch, "save"), (module, "_sync"), (Path, "rename")):
            patch.setattr(owner, name, mortal(getattr(owner, name)))
        with pytest.raises(Killed):
            save(tmp_path, learner, "lease-2")
    resumed = make_learner(tiny_policy(seed=9))
    progress = load(tmp_path, resumed)
    assert moments[after:] == moments[-1:]
    if progress == Progress(policy_version=1, lease_ids=("lease-1",)):
        assert same(state_of(resumed.policy), first)
    else:
        assert progress == Progress(policy_version=2, lease_ids=("lease-2",))
        assert same(state_of(resumed.policy), state_of(learner.policy))
    train(resumed)
    save(tmp_path, resumed)
    assert not list(tmp_path.glob(f".{resumed.policy.version:06d}*"))


@pytest.mark.parametrize("other", [{"hidden_size": 64}, {"num_hidden_layers": 1}, {"trainable_layers": 1}])
def test_another_models_checkpoint_is_refused_and_the_weights_stay(tmp_path: Path, other: dict) -> None:
    learner = make_learner(tiny_policy())
    train(learner)
    save(tmp_path, learner)
    wrong = make_learner(tiny_policy(**other))
    before = state_of(wrong.policy)
    with pytest.raises(ConfigError, match="another model"):
        load(tmp_path, wrong)
    assert same(state_of(wrong.policy), before)
    assert wrong.policy.version == 0


def test_settings_of_the_optimiser_that_were_changed_for_the_resumed_run_hold(tmp_path: Path) -> None:
    before = make_learner(tiny_policy(), betas=(0.9, 0.95))
    train(before)
    save(tmp_path, before)
    resumed = make_learner(tiny_policy(), weight_decay=0.5, betas=(0.5, 0.6))
    load(tmp_path, resumed)
    policy, critic = resumed.optimizer.param_groups
    assert (policy["weight_decay"], policy["betas"]) == (0.5, (0.5, 0.6))
    assert (critic["weight_decay"], critic["betas"]) == (0.0, (0.5, 0.6))
    assert {int(state["step"]) for state in resumed.optimizer.state.values()} == {1}  # its moments did come back
