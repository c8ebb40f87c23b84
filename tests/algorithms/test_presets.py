"""Presets: published numbers as data."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from stepwell.algorithms import ALGORITHMS, presets
from stepwell.algorithms.base import Algorithm, AlgorithmConfig, Objective
from stepwell.algorithms.objective import Ratio
from stepwell.algorithms.presets import Preset, load_preset, preset_names
from stepwell.config import component_config, load_config
from stepwell.errors import ConfigError
from stepwell.trainer.update import LearnerConfig

NAMES = preset_names()
every_preset = pytest.mark.parametrize("name", NAMES)


ACTOR = {"lr": 1e-6, "epochs": 1, "minibatch_steps": 128, "grad_clip": 1.0}
CRITIC = {**ACTOR, "critic_lr": 1e-5, "lam": 1.0, "value_clip": 0.5, "groups_per_update": 128, "group_size": 1}
CRITIC |= {"temperature": 1.0, "kl_coefficient": 0.001}
GROUP = {**ACTOR, "groups_per_update": 16, "group_size": 8, "temperature": 1.0}
ALFWORLD = {"prompt_tokens": 8192, "response_tokens": 4096, "max_steps": 20}
SEEUPO = {"lr": 1e-6, "epochs": 1, "kl_coefficient": 0.002, "groups_per_update": 32, "group_size": 8}
SEEUPO |= {"temperature": 0.9, "max_steps": 10}
RTPO = {"lr": 1e-6, "weight_decay": 0.01, "epochs": 1, "kl_coefficient": 0.02, "groups_per_update": 64}
RTPO |= {"temperature": 0.9, "prompt_tokens": 8192, "response_tokens": 4096, "max_steps": 3}
STEPOPSD = {"mixing": 0.2, "decay_updates": 50, "refresh_every": 10, "kl_coefficient": 0.001, "lr": 1e-6, "epochs": 1}


def clip(low: float, high: float) -> dict[str, float]:
    return {"clip_low": low, "clip_high": high}


PUBLISHED: Mapping[str, Mapping[str, float]] = {
    "steppo-v4": {**CRITIC, **ALFWORLD, **clip(3e-4, 3e-4), "gamma": 0.99},
    "steppo-released-may": {**CRITIC, **ALFWORLD, **clip(3e-4, 4e-4), "gamma": 1.0, "max_steps": 15},
    "capo-v5": {**CRITIC, **ALFWORLD, **clip(1e-3, 1e-3), "gamma": 0.99},
    "capo-released-august": {**CRITIC, **ALFWORLD, **clip(3e-4, 3e-4), "gamma": 0.99},
    "token-ppo-agentr1": {**CRITIC, **ALFWORLD, **clip(0.2, 0.2), "gamma": 0.99},
    "token-ppo-fair": {**CRITIC, **clip(0.2, 0.2), "gamma": 1.0},
    "grpo": {**GROUP, **ALFWORLD, **clip(0.2, 0.2), "kl_coefficient": 0.001},
    "dr-grpo": {**GROUP, **clip(0.2, 0.2)},
    "gspo": {**clip(3e-4, 4e-4), "lr": 1e-6},
    "gspo-agentr1": {**GROUP, **ALFWORLD, **clip(3e-4, 3e-4), "kl_coefficient": 0.001},
    "rloo": {**GROUP, **ALFWORLD, **clip(0.2, 0.2), "kl_coefficient": 0.001},
    "reinforce-pp": {**GROUP, **ALFWORLD, **clip(0.2, 0.2), "kl_coefficient": 0.001, "gamma": 1.0},
    "reinforce-pp-baseline": {**GROUP, **ALFWORLD, **clip(0.2, 0.2), "kl_coefficient": 0.001},
    "gigpo-agentr1": {**GROUP, **ALFWORLD, **clip(0.2, 0.2), "kl_coefficient": 0.001, "omega": 1.0, "gamma": 0.99},
    "gigpo-roll": {"omega": 1.0, "gamma": 0.95, "group_size": 8, "groups_per_update": 16},
    "seeupo-paper": SEEUPO,
    "seeupo-released": SEEUPO,
    "stepopsd-paper": {
        **STEPOPSD,
        **clip(0.2, 0.2),
        "clip": 0.05,
        "groups_per_update": 16,
        "group_size": 8,
        "prompt_tokens": 2048,
        "response_tokens": 512,
    },
    "stepopsd-repository": {
        **STEPOPSD,
        **clip(0.2, 0.2),
        "clip": 0.2,
        "warmup_updates": 286,  # 0.285 of 1005
        "groups_per_update": 64,
        "group_size": 5,
        "temperature": 1.0,
        "response_tokens": 1024,
        "max_steps": 20,
    },
    "rtpo-paper": {**RTPO, **clip(0.2, 0.2), "group_size": 2, "trunks": 4},
    "rtpo-loo": {**RTPO, **clip(0.2, 0.2), "group_size": 4, "trunks": 4},
    "agentopsd": {"mixing": 0.5, "band": 0.2, "decay": 0.95},
    "opsd": {"clip": 5.0, "response_tokens": 2048},
    "sdpo": {
        "clip": 5.0,
        "correct_above": 0.5,
        "correction_cap": 2.0,
        "lr": 1e-5,
        "groups_per_update": 32,
        "group_size": 8,
    },
}
"""Each number of each preset, once more, by its setting: written down from the sources, not from the presets."""


CHOSEN: dict[str, dict[str, object]] = {
    "agentopsd": {"use": "agentopsd", "told": "peer", "peer_for": "all"},
    "capo-released-august": {
        "use": "steppo",
        "bootstrap_on_truncation": False,
        "ratio": "geo",
        "aggregation": "per_step",
        "kl_estimator": "k3",
    },
    "capo-v5": {
        "use": "capo",
        "bootstrap_on_truncation": False,
        "ratio": "sqrt",
        "aggregation": "per_step",
        "kl_estimator": "k3",
    },
    "dr-grpo": {"use": "grpo", "scale": "none", "ratio": "token", "aggregation": "per_token"},
    "gigpo-agentr1": {
        "use": "gigpo",
        "scale": "std",
        "anchor": "observation",
        "ratio": "token",
        "aggregation": "per_step",
        "kl_estimator": "k3",
    },
    "gigpo-roll": {"use": "gigpo", "scale": "std", "anchor": "observation"},
    "grpo": {"use": "grpo", "scale": "std", "ratio": "token", "aggregation": "per_step", "kl_estimator": "k3"},
    "gspo": {"use": "grpo", "scale": "std", "ratio": "sequence", "aggregation": "per_sequence"},
    "gspo-agentr1": {"use": "grpo", "scale": "std", "ratio": "geo", "aggregation": "per_step", "kl_estimator": "k3"},
    "opsd": {
        "use": "opsd",
        "teacher": "initial",
        "told": "peer",
        "peer_for": "all",
        "ratio": "token",
        "aggregation": "per_token",
    },
    "reinforce-pp": {
        "use": "reinforce_pp",
        "baseline": "none",
        "ratio": "token",
        "aggregation": "per_step",
        "kl_estimator": "k1",
        "kl_in": "reward",
    },
    "reinforce-pp-baseline": {
        "use": "reinforce_pp",
        "baseline": "group",
        "ratio": "token",
        "aggregation": "per_step",
        "kl_estimator": "k1",
        "kl_in": "reward",
    },
    "rloo": {"use": "rloo", "ratio": "token", "aggregation": "per_step", "kl_estimator": "k1", "kl_in": "reward"},
    "rtpo-loo": {
        "use": "rtpo",
        "order": "reverse",
        "skip_alike": False,
        "trunks_ahead": False,
        "baseline": "leave_one_out",
        "scale": "none",
        "zero_advantage": "keep",
        "continuation": "regenerated",
        "ratio": "token",
        "aggregation": "per_step",
        "kl_estimator": "k3",
    },
    "rtpo-paper": {
        "use": "rtpo",
        "order": "reverse",
        "skip_alike": False,
        "trunks_ahead": False,
        "baseline": "mean",
        "scale": "none",
        "zero_advantage": "keep",
        "continuation": "regenerated",
        "ratio": "token",
        "aggregation": "per_step",
        "kl_estimator": "k3",
    },
    "sdpo": {
        "use": "opsd",
        "teacher": "current",
        "told": "peer",
        "peer_for": "all",
        "ratio": "token",
        "aggregation": "per_token",
        "old_logprobs": "trainer",
        "correction": "truncate",
    },
    "seeupo-paper": {
        "use": "seeupo",
        "mode": "paper",
        "order": "reverse",
        "ratio": "geo",
        "aggregation": "per_step",
        "kl_estimator": "k3",
    },
    "seeupo-released": {
        "use": "seeupo",
        "mode": "released",
        "order": "reverse",
        "ratio": "geo",
        "aggregation": "per_step",
        "kl_estimator": "k3",
    },
    "stepopsd-paper": {
        "use": "stepopsd",
        "weight": "sigmoid",
        "normalize": "equal_step_mean_abs",
        "span": "action_only",
        "student": "recomputed",
        "told": "peer",
        "peer_for": "failed",
        "outcome": False,
        "scale": "std",
        "ratio": "token",
        "aggregation": "per_token",
        "kl_estimator": "k3",
    },
    "stepopsd-repository": {
        "use": "stepopsd",
        "weight": "sigmoid",
        "normalize": "equal_step_mean_abs",
        "span": "full_action",
        "student": "recomputed",
        "told": "nothing",
        "outcome": True,
        "scale": "std",
        "ratio": "token",
        "aggregation": "per_token",
        "kl_estimator": "k3",
    },
    "steppo-released-may": {
        "use": "steppo",
        "bootstrap_on_truncation": False,
        "ratio": "geo",
        "aggregation": "per_step",
        "kl_estimator": "k3",
    },
    "steppo-v4": {
        "use": "steppo",
        "bootstrap_on_truncation": False,
        "ratio": "geo",
        "aggregation": "per_trajectory",
        "kl_estimator": "k3",
    },
    "token-ppo-agentr1": {
        "use": "ppo",
        "bootstrap_on_truncation": False,
        "ratio": "token",
        "aggregation": "per_step",
        "kl_estimator": "k3",
    },
    "token-ppo-fair": {"use": "ppo", "ratio": "token", "aggregation": "per_step", "kl_estimator": "k3"},
}
"""What each preset chooses that is no number, once more: docs/papers.md says where it was published."""


def choices(section: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Each setting in it that is no number, by its own name."""
    for name, value in section.items():
        if isinstance(value, Mapping):
            yield from choices(value)
        elif isinstance(value, str | bool):
            yield name, value


def numbers(section: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    """Each number in it by its setting's own name, which no two sections share."""
    for name, value in section.items():
        if isinstance(value, Mapping):
            yield from numbers(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield name, value


def built(name: str) -> Algorithm:
    return component_config(ALGORITHMS, AlgorithmConfig, load_preset(name).algorithm).build()


@every_preset
def test_each_makes_its_algorithm_and_says_where_it_comes_from(name: str) -> None:
    preset = load_preset(name)
    assert built(name).name == preset.algorithm["use"]
    assert "arXiv" in preset.source.paper or "github.com" in preset.source.paper


@every_preset
def test_each_number_is_the_published_one_and_none_is_missing(name: str) -> None:
    preset = load_preset(name)
    sections = (preset.algorithm, preset.learner, preset.rollout.model_dump())
    assert dict(pair for section in sections for pair in numbers(section)) == PUBLISHED[name]


@every_preset
def test_each_choice_is_the_published_one_and_none_is_missing(name: str) -> None:
    assert dict(choices(load_preset(name).algorithm)) == CHOSEN[name]


@pytest.mark.parametrize(
    ("ratio", "clip_range"),
    [
        ("token", (0.2, 0.2)),
        ("geo", (3e-4, 3e-4)),
        ("sqrt", (1e-3, 1e-3)),
        ("exact", (0.2, 0.2)),
        ("sequence", (3e-4, 4e-4)),
    ],
)
def test_each_kind_of_ratio_has_the_clip_range_that_it_was_published_with(ratio: Ratio, clip_range: tuple) -> None:
    assert Objective(ratio=ratio).clip == clip_range


@pytest.mark.parametrize(("name", "preset"), [("steppo", "steppo-v4"), ("capo", "capo-v5")])
def test_an_algorithm_by_name_has_the_credit_ratio_and_clip_of_its_preset(name: str, preset: str) -> None:
    plain, published = ALGORITHMS[name](), component_config(ALGORITHMS, AlgorithmConfig, load_preset(preset).algorithm)
    assert (plain.build().objective.ratio, plain.build().objective.clip) == (
        published.build().objective.ratio,
        published.build().objective.clip,
    )
    credit = {"gamma", "lam", "whiten"}
    assert plain.model_dump(include=credit) == published.model_dump(include=credit)


def test_sdpo_and_opsd_differ_in_their_teacher_and_what_they_correct() -> None:
    opsd, sdpo = built("opsd"), built("sdpo")
    assert (opsd.teacher.refresh_every > 10**12, sdpo.teacher.refresh_every) == (True, 0)
    assert (opsd.objective.correction, sdpo.objective.correction) == ("none", "truncate")


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
        ("seeupo-paper", "geo", (3e-4, 3e-4), "per_step"),
        ("seeupo-released", "geo", (3e-4, 3e-4), "per_step"),
        ("token-ppo-fair", "token", (0.2, 0.2), "per_step"),
        ("rloo", "token", (0.2, 0.2), "per_step"),
        ("reinforce-pp", "token", (0.2, 0.2), "per_step"),
        ("reinforce-pp-baseline", "token", (0.2, 0.2), "per_step"),
        ("gigpo-agentr1", "token", (0.2, 0.2), "per_step"),
        ("gigpo-roll", "token", (0.2, 0.2), "per_step"),
        ("rtpo-paper", "token", (0.2, 0.2), "per_step"),
        ("rtpo-loo", "token", (0.2, 0.2), "per_step"),
        ("stepopsd-paper", "token", (0.2, 0.2), "per_token"),
        ("stepopsd-repository", "token", (0.2, 0.2), "per_token"),
        ("agentopsd", "token", (0.2, 0.2), "per_step"),
        ("opsd", "token", (0.2, 0.2), "per_token"),
        ("sdpo", "token", (0.2, 0.2), "per_token"),
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
