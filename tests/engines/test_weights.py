"""What a checkpoint holds, without loading it; and a comparison that finds wrong weights."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from stepwell.engines.base import WrongWeights
from stepwell.engines.local import LocalEngine
from stepwell.engines.weights import layout_of, refuse_others, verified
from stepwell.errors import ConfigError
from tests.engines.laws import EOS
from tests.fakes.weights import saved
from tests.policy.tiny import tiny_policy

SHAPES = st.dictionaries(
    st.text("abc.", min_size=1), st.lists(st.integers(1, 3), max_size=3).map(tuple), min_size=1, max_size=4
)
LAYOUT = {"model.embed": (4, 2), "model.norm": (2,)}


@given(shapes=SHAPES)
def test_the_layout_is_the_names_and_shapes_that_were_saved(shapes: dict, tmp_path_factory) -> None:
    folder = tmp_path_factory.mktemp("checkpoint")
    (folder / "config.json").write_text("{}")
    tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert layout_of(folder) == shapes


def test_of_several_files_those_count_that_the_index_names(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for name in "abc":
        save_file({name: torch.zeros(2)}, tmp_path / f"{name}.safetensors")
    index = {"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert layout_of(tmp_path) == {"a": (2,), "b": (2,)}


@given(damage=st.binary(max_size=60))
def test_whatever_a_damaged_file_holds_the_error_is_the_same(damage: bytes, tmp_path_factory) -> None:
    folder = tmp_path_factory.mktemp("checkpoint")
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(damage)
    with pytest.raises(ConfigError, match="cannot be read"):
        layout_of(folder)


def test_a_folder_without_a_config_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json"):
        layout_of(tmp_path)


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"model.norm": (3,)}, r"model.norm \[3\] for \[2\]"), ({"extra": (1,)}, r"extra \[1\] for absent")],
)
def test_another_model_is_refused_by_name(changes: dict, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        refuse_others(LAYOUT | changes, LAYOUT)


def test_an_output_layer_may_come_but_not_go() -> None:
    untied = LAYOUT | {"lm_head.weight": (4, 2)}
    refuse_others(untied, LAYOUT)
    refuse_others(untied, untied)
    with pytest.raises(ConfigError, match=r"lm_head.weight absent for \[4, 2\]"):
        refuse_others(LAYOUT, untied)


async def test_a_comparison_that_cannot_be_made_is_none_that_was_passed(tmp_path: Path) -> None:
    policy = tiny_policy()
    engine = LocalEngine(policy, eos_ids=[EOS])
    weights = saved(policy, tmp_path)
    try:
        assert await verified(engine, weights) < 1e-4
        for wrong in (
            {"logprob": weights.logprob - 0.02},
            {"logprob": float("nan")},
            {"prompt_ids": weights.prompt_ids + 99},
        ):
            with pytest.raises(WrongWeights):
                await verified(engine, dataclasses.replace(weights, **wrong))
    finally:
        engine.close()
