import torch

from stepwell.policy.snapshot import Snapshot
from tests.policy.tiny import tiny_policy


def test_a_snapshot_puts_the_policy_back_for_a_while_and_then_away() -> None:
    policy = tiny_policy()
    was = Snapshot.of(policy)
    with torch.no_grad():
        for parameter in policy.trainable_parameters():
            parameter.add_(1.0)
    now = {name: tensor.clone() for name, tensor in policy.model_state().items()}
    with was.in_place(policy):
        assert all(torch.equal(was.state[name], tensor) for name, tensor in policy.model_state().items())
    assert all(torch.equal(now[name], tensor) for name, tensor in policy.model_state().items())


def test_an_error_meanwhile_leaves_the_policy_as_it_is() -> None:
    policy = tiny_policy()
    was = Snapshot.of(policy)
    with torch.no_grad():
        policy.trainable_parameters()[0].add_(1.0)
    now = policy.trainable_parameters()[0].clone()
    try:
        with was.in_place(policy):
            raise ValueError("in between")
    except ValueError:
        pass
    assert torch.equal(policy.trainable_parameters()[0], now)


def test_it_holds_the_language_model_alone_and_leaves_the_critic_as_it_is() -> None:
    policy = tiny_policy(settings={"critic": "model"})
    was = Snapshot.of(policy)
    assert {name.split(".")[0] for name in was.state} == {"model"}
    with torch.no_grad():
        for parameter in policy.critic_parameters():
            parameter.add_(1.0)
    now = [parameter.clone() for parameter in policy.critic_parameters()]
    with was.in_place(policy):
        assert all(torch.equal(a, b) for a, b in zip(now, policy.critic_parameters(), strict=True))
