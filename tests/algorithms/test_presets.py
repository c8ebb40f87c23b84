"""Presets: published numbers as data."""

from pathlib import Path

import pytest
import yaml

from stepwell.algorithms import ALGORITHMS, presets
from stepwell.algorithms.base import Algorithm, AlgorithmConfig
from stepwell.algorithms.presets import Preset, load_preset, preset_names
from stepwell.config import component_config, load_config
from stepwell.errors import ConfigError
from stepwell.trainer.update import LearnerConfig

NAMES = preset_names()
every_preset = pytest.mark.parametrize("name", NAMES)


def built(name: str) -> Algorithm:
    return component_config(ALGORITHMS, AlgorithmConfig, load_preset(name).algorithm).build()


@every_preset
def test_each_makes_its_algorithm_and_says_where_it_comes_from(name: str) -> None:
    preset = load_preset(name)
    assert built(name).name == preset.algorithm["use"]
    assert "arXiv" in preset.source.paper


@every_preset
def test_each_sets_settings_that_the_learner_has(name: str) -> None:
    section = load_preset(name).learner
    assert LearnerConfig.model_validate(section).model_dump(include=set(section)) == section


@every_preset
def test_each_gives_both_sides_of_its_clip_range_or_none(name: str) -> None:
    objective = load_preset(name).algorithm.get("objective", {})
    assert ("clip_low" in objective) == ("clip_high" in objective)


@pytest.mark.parametrize(
    ("name", "ratio", "clip", "aggregation"),
    [
        ("steppo-v4", "geo", (3e-4, 3e-4), "per_trajectory"),
        ("steppo-released-may", "geo", (3e-4, 4e-4), "per_step"),
        ("capo-v5", "sqrt", (1e-3, 1e-3), "per_step"),
        ("capo-released-august", "geo", (3e-4, 3e-4), "per_step"),
        ("token-ppo-agentr1", "token", (0.2, 0.2), "per_step"),
        ("grpo", "token", (0.2, 0.2), "per_step"),
        ("dr-grpo", "token", (0.2, 0.2), "per_token"),
        ("gspo", "sequence", (3e-4, 4e-4), "per_sequence"),
        ("gspo-agentr1", "geo", (3e-4, 3e-4), "per_step"),
        ("seeupo-released", "geo", (3e-4, 4e-4), "per_step"),
    ],
)
def test_the_objectives_are_the_published_ones(name: str, ratio: str, clip: tuple, aggregation: str) -> None:
    objective = built(name).objective
    assert (objective.ratio, objective.clip, objective.aggregation) == (ratio, clip, aggregation)


def test_the_published_token_ppo_and_the_fair_one_differ_in_horizon_and_truncation_alone() -> None:
    published, fair = (dict(load_preset(f"token-ppo-{name}").algorithm) for name in ("agentr1", "fair"))
    assert (published.pop("gamma"), fair.pop("gamma")) == (0.99, 1.0)
    assert (published.pop("bootstrap_on_truncation"), fair.pop("bootstrap_on_truncation", True)) == (False, True)
    assert published == fair


def test_version_5_of_the_paper_and_the_code_released_with_it_do_not_train_the_same_ratio() -> None:
    assert built("capo-v5").objective.ratio != built("capo-released-august").objective.ratio


@pytest.mark.parametrize(
    ("name", "message"),
    [("stepo-v4", "did you mean 'steppo-v4'"), ("../steppo-v4", "there is no preset"), ("zzz", "known: .*grpo")],
)
def test_an_unknown_preset_is_an_error_that_names_the_nearest(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_preset(name)


def test_a_preset_with_a_wrong_key_or_algorithm_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = {"paper": "p", "version": "v", "read": "r"}
    monkeypatch.setattr(presets, "_FOLDER", tmp_path)
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({"source": source, "algorithm": {"use": "grop"}}))
    with pytest.raises(ConfigError, match=r"preset a: .*did you mean 'grpo'"):
        load_preset("a")
    (tmp_path / "b.yaml").write_text(yaml.safe_dump({"source": source, "algorithm": {"use": "grpo"}, "lerner": {}}))
    with pytest.raises(ConfigError, match="did you mean 'learner'"):
        load_config(Preset, tmp_path / "b.yaml")
