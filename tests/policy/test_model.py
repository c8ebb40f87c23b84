"""The policy evaluates exactly what transformers does, and refuses what it could not."""

import copy
import threading
from pathlib import Path

import pytest
import torch
from transformers import (
    BartConfig,
    BloomConfig,
    DeepseekV3Config,
    FalconConfig,
    FalconForCausalLM,
    GptOssConfig,
    GraniteConfig,
    Lfm2Config,
    OlmoeConfig,
    PreTrainedConfig,
    Qwen2MoeConfig,
    XGLMConfig,
)

from stepwell.config import load_config
from stepwell.errors import ConfigError, NotFound
from stepwell.policy.attention import ATTENTION
from stepwell.policy.builtin import BUILTIN_MODELS
from stepwell.policy.model import Policy, PolicyConfig
from tests.policy.tiny import (
    CONFIGS,
    VOCABULARY,
    plain_twin,
    random_ids,
    several_rows,
    tiny_config,
    tiny_model,
    tiny_policy,
)

every_kind = pytest.mark.parametrize("kind", sorted(CONFIGS))


def some_rows(lengths: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.from_numpy(random_ids(n, seed)).long() for seed, n in enumerate(lengths)]


@every_kind
@pytest.mark.parametrize("lengths", [(7,), (1, 1, 1), (9, 9, 4, 4, 1), (3, 8, 3), (1, 20, 2)])
@torch.no_grad()
def test_packed_rows_have_the_logits_of_the_plain_model_on_each_row(kind: str, lengths: tuple[int, ...]) -> None:
    policy = tiny_policy(kind, num_hidden_layers=3)
    rows = some_rows(lengths)
    twin = plain_twin(policy)
    expected = torch.cat([twin(row[None]).logits[0] for row in rows])
    got = policy.logits(policy.hidden(*several_rows(rows)))
    assert expected.std() > 0.1  # the comparison means something
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


@every_kind
@torch.no_grad()
def test_a_row_comes_out_the_same_whatever_it_is_packed_with(kind: str) -> None:
    policy = tiny_policy(kind)
    row, *others = some_rows((6, 6, 11, 2))
    alone = policy.hidden(*several_rows([row]))
    last = policy.hidden(*several_rows([*others, row]))[-6:]
    torch.testing.assert_close(last, alone, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_the_lookup_model_is_evaluated_like_any_other(tmp_path: Path) -> None:
    BUILTIN_MODELS["lookup"](tmp_path, 3)
    policy = Policy.load(tmp_path, name="lookup")
    row = torch.arange(20)
    expected = plain_twin(policy)(row[None]).logits[0]
    torch.testing.assert_close(policy.logits(policy.hidden(*several_rows([row]))), expected, atol=1e-5, rtol=1e-5)
    assert policy.context_length == 256


def test_a_new_critic_values_everything_at_0() -> None:
    policy = Policy(tiny_model(tiny_config()), name="tiny")
    assert policy.values(torch.randn(5, 32)).tolist() == [0.0] * 5


@pytest.mark.parametrize(("critic", "moves"), [("head", False), ("shared", True)])
def test_learning_values_moves_the_policy_only_where_the_critic_is_shared(critic: str, moves: bool) -> None:
    policy = tiny_policy(settings={"critic": critic})
    ids, positions, plan = several_rows(some_rows((3,)))
    states = policy.critic_states(policy.hidden(ids, positions, plan), ids, positions, plan)
    policy.values(states).sum().backward()
    assert any(p.grad is not None for p in policy.trainable_parameters()) == moves
    assert all(p.grad is not None for p in policy.critic.head.parameters())


def test_a_critic_with_a_model_of_its_own_begins_as_the_policys_copy_and_shares_no_weight_with_it() -> None:
    policy = tiny_policy(settings={"critic": "model"})
    ids, positions, plan = several_rows(some_rows((3,)))
    states = policy.critic_states(None, ids, positions, plan)
    torch.testing.assert_close(states, policy.hidden(ids, positions, plan))
    policy.values(states).sum().backward()
    assert all(p.grad is None for p in policy.trainable_parameters())
    assert all(p.grad is not None for p in policy.critic_parameters())


@pytest.mark.parametrize("settings", [{}, {"lora": {"rank": 2}}], ids=["whole", "lora"])
def test_a_critics_own_model_can_begin_anew_as_the_policy_is_after_a_warm_up(settings: dict) -> None:
    policy = tiny_policy(settings={"critic": "model", **settings})
    with torch.no_grad():
        for parameter in policy.trainable_parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        ids, positions, plan = several_rows(some_rows((3, 5)))
        expected = policy.hidden(ids, positions, plan)
        assert not torch.allclose(policy.critic_states(None, ids, positions, plan), expected, atol=1e-3)
        policy.begin_critic()
        torch.testing.assert_close(policy.critic_states(None, ids, positions, plan), expected, atol=1e-4, rtol=1e-4)
    assert not {p.data_ptr() for p in policy.critic_parameters()} & {p.data_ptr() for p in policy.model.parameters()}


def test_gradient_checkpointing_computes_the_layers_of_the_critics_own_model_twice_and_changes_no_gradient() -> None:
    calls, gradients = {}, {}
    for twice in (False, True):
        policy = tiny_policy(settings={"critic": "model", "gradient_checkpointing": twice})
        counted: list[int] = []
        for layer in policy.critic.trunk.layers:
            layer.self_attn.register_forward_pre_hook(lambda *_, counted=counted: counted.append(1))
        states = policy.critic_states(None, *several_rows(some_rows((3, 5))))
        policy.values(states).sum().backward()
        calls[twice], gradients[twice] = len(counted), [p.grad for p in policy.critic_parameters()]
    assert calls == {False: 2, True: 4}
    torch.testing.assert_close(gradients[True], gradients[False])


def test_adapters_and_trained_layers_at_once_are_refused() -> None:
    with pytest.raises(ConfigError, match="leave trainable_layers out"):
        load_config(PolicyConfig, None, ["trainable_layers=1", "lora.rank=4"])


@every_kind
def test_trainable_state_round_trips_exactly(kind: str) -> None:
    source, target = tiny_policy(kind, seed=1), tiny_policy(kind, seed=2)
    target.load_trainable_state(source.trainable_state())
    ids = several_rows(some_rows((5, 3)))
    with torch.no_grad():
        assert torch.equal(source.hidden(*ids), target.hidden(*ids))
        assert torch.equal(source.values(torch.ones(1, 32)), target.values(torch.ones(1, 32)))


def test_the_trained_part_is_the_last_layers_the_final_norm_and_the_critic() -> None:
    policy = tiny_policy(trainable_layers=1, num_hidden_layers=3)
    names = policy.trainable_state().keys()
    kinds = {name.split(".layers.2.")[0] if ".layers.2." in name else name for name in names}
    critic = {f"critic.head.{part}.{what}" for part in (1, 3) for what in ("weight", "bias")}
    assert kinds == {"model.model", "model.model.norm.weight", *critic}
    assert len(policy.trainable_parameters()) == len(names) - len(critic)


@pytest.mark.parametrize("other", [{"hidden_size": 64}, {"num_hidden_layers": 1}, {"trainable_layers": 1}])
def test_another_models_state_is_refused_and_changes_nothing(other: dict) -> None:
    policy = tiny_policy()
    before = {name: tensor.clone() for name, tensor in policy.trainable_state().items()}
    with pytest.raises(ConfigError, match="another model"):
        policy.load_trainable_state(tiny_policy(**other).trainable_state())
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.trainable_state().items())


@pytest.mark.parametrize("layers", [3, 9])
def test_a_number_of_layers_that_the_model_does_not_have_is_refused(layers: int) -> None:
    with pytest.raises(ConfigError, match=r"1\.\.2"):
        tiny_policy(trainable_layers=layers)


def small(kind: type[PreTrainedConfig], **more) -> PreTrainedConfig:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    return kind(**{**sizes, "pad_token_id": 0, **more})


SPREAD = {"initializer_range": 0.2, "init_std": 0.2}
EXPERTS = {**SPREAD, "intermediate_size": 48, "moe_intermediate_size": 16, "num_experts": 4, "n_routed_experts": 4}
EXPERTS |= {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "shared_expert_intermediate_size": 16}
MIXED = {"use_sliding_window": True, "max_window_layers": 1, "num_key_value_heads": 2}
LATENT = {"q_lora_rank": 12, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
LATENT |= {"num_key_value_heads": 4, "head_dim": 4}


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (small(Lfm2Config, layer_types=["conv", "full_attention"], num_key_value_heads=2), "conv.*carry a state"),
        (small(GptOssConfig, intermediate_size=48, num_key_value_heads=2, head_dim=8, num_local_experts=2), "s_aux"),
        (tiny_config("llama", rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}), "dynamic"),
        (small(GraniteConfig, intermediate_size=48, logits_scaling=2.0), "logits_scaling"),
        (small(BloomConfig), "max_position_embeddings"),
        (small(BloomConfig, max_position_embeddings=64), "attention cannot be planned"),
        (small(XGLMConfig, d_model=32, num_layers=2, attention_heads=4, ffn_dim=48), "attention cannot be planned"),
        # what only a comparison with transformers' own attention finds: no config of these says it
        (tiny_config("gemma3", use_bidirectional_attention=True), "attention cannot be planned"),
        (small(OlmoeConfig, **EXPERTS, sliding_window=5), "windows are the layers' own"),
        (small(Qwen2MoeConfig, **EXPERTS, sliding_window=5, **MIXED), "windows are the layers' own"),
        (small(BartConfig, d_model=32, decoder_layers=2, decoder_attention_heads=4, **SPREAD), "cannot be planned"),
        (small(DeepseekV3Config, **EXPERTS, **LATENT), "values of size 8 for queries of size 12"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, PreTrainedConfig) else "",
)
def test_an_architecture_that_it_would_evaluate_wrongly_is_refused(config: PreTrainedConfig, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Policy(tiny_model(config), name="unsupported")


def test_a_window_that_hides_nothing_within_the_context_need_not_be_the_layers_own() -> None:
    with torch.no_grad():
        config = small(OlmoeConfig, **EXPERTS, sliding_window=64, max_position_embeddings=64)
        policy = Policy(tiny_model(config), name="supported")
        row = random_ids(64)
        got = policy.logits(policy.hidden(*several_rows([row])))
        expected = plain_twin(policy)(torch.from_numpy(row).long()[None]).logits[0]
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


@every_kind
def test_a_models_windows_and_its_attention_are_left_as_they_were_when_it_was_looked_at(kind: str) -> None:
    model = tiny_model(tiny_config(kind))
    before = [getattr(m, "sliding_window", None) for m in model.modules()], copy.deepcopy(model.config.to_dict())
    Policy(model, name="tiny")
    assert ([getattr(m, "sliding_window", None) for m in model.modules()], model.config.to_dict()) == before
    assert model.config._attn_implementation == ATTENTION


def test_a_checkpoint_whose_attention_is_its_own_is_refused_by_name(tmp_path: Path) -> None:
    FalconForCausalLM(small(FalconConfig)).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="attention of its own"):
        Policy.load(tmp_path, name="falcon")


def test_a_model_called_past_the_policy_says_how_to_call_it() -> None:
    with pytest.raises(TypeError, match="Policy"):
        tiny_policy().model(torch.tensor([[1, 2]]))


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"config\.json"):
        Policy.load(tmp_path, name="nothing")


def test_weights_are_not_written_while_they_are_read() -> None:
    policy, events = tiny_policy(), []

    def write() -> None:
        with policy.writing():
            events.append("written")

    writer = threading.Thread(target=write)
    with policy.reading():
        writer.start()
        writer.join(timeout=0.05)  # a chance to do what it must not
        events.append("read")
    writer.join()
    assert events == ["read", "written"]


def test_readers_see_the_version_that_a_writer_has_finished() -> None:
    policy = tiny_policy()
    with policy.writing():
        policy.version = 7
    with policy.reading() as version:
        assert version == 7
