"""Every recipe, and every command that their README shows, is a run that could begin: checked without its model."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from transformers import Qwen2Config, Qwen3Config

from stepwell.algorithms import ALGORITHMS
from stepwell.algorithms.presets import load_preset
from stepwell.cli.config import RecipeConfig
from stepwell.cli.dry_run import outlook
from stepwell.cli.recipes import find_recipe
from stepwell.cli.train import what_to_run
from stepwell.config import component_config, load_config
from stepwell.environments import ENVIRONMENTS
from stepwell.policy.builtin import resolve_model
from stepwell.rollout.env import TaskSetConfig

RECIPES = Path(__file__).parents[2] / "recipes"
COMMANDS = re.findall(r"^\$ stepwell train (.+)$", (RECIPES / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
PAPERS = [command for command in COMMANDS if command.startswith("papers/")]
SMALL = [command for command in COMMANDS if not command.startswith("papers/")]
QWEN3 = {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936, "max_position_embeddings": 40_960}
SIZES = {
    "Qwen2.5-3B-Instruct": Qwen2Config(
        hidden_size=2048,
        intermediate_size=11_008,
        num_hidden_layers=36,
        num_attention_heads=16,
        num_key_value_heads=2,
        vocab_size=151_936,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
    ),
    "Qwen3-1.7B": Qwen3Config(
        hidden_size=2048,
        intermediate_size=6144,
        num_hidden_layers=28,
        num_attention_heads=16,
        tie_word_embeddings=True,
        **QWEN3,
    ),
    "Qwen3-4B": Qwen3Config(
        hidden_size=2560,
        intermediate_size=9728,
        num_hidden_layers=36,
        num_attention_heads=32,
        tie_word_embeddings=True,
        **QWEN3,
    ),
    "Qwen3-8B": Qwen3Config(
        hidden_size=4096, intermediate_size=12_288, num_hidden_layers=36, num_attention_heads=32, **QWEN3
    ),
}
SIZES["Qwen3-4B-Instruct-2507"] = SIZES["Qwen3-4B"]
"""The published shapes: what a dry run reads of a model."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `models/`, whose models have a shape and some tokenizer, and no weights."""
    folder, small = tmp_path_factory.mktemp("papers"), resolve_model("lookup")
    for name, config in SIZES.items():
        config.save_pretrained(folder / "models" / name)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(small / file, folder / "models" / name / file)
    return folder


def recipe_of(command: str) -> RecipeConfig:
    words = shlex.split(command)
    chosen: list[str] = []
    if "--preset" in words:
        at = words.index("--preset")
        chosen, words = load_preset(words[at + 1]).overrides, words[:at] + words[at + 2 :]
    return what_to_run(words, None, Path("run"), chosen)[0]


@pytest.mark.parametrize("command", PAPERS)
def test_every_command_of_the_papers_size_is_a_run(command: str, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its task set's settings are checked; the data, which is to be downloaded, is not read."""
    monkeypatch.chdir(models)
    recipe = recipe_of(command)
    component_config(ENVIRONMENTS, TaskSetConfig, recipe.environment)
    seen = outlook(recipe.model_copy(update={"environment": {"use": "lookup"}}), Path("run"))
    billions = float(re.search(r"([\d.]+)B", recipe.policy.model)[1])
    assert seen.model.parameters / 1e9 == pytest.approx(billions, rel=0.05)
    assert seen.memory.weights == pytest.approx(4 * (seen.model.parameters + seen.model.critic) / recipe.learner.ranks)
    assert (recipe.learner.lr, recipe.engine["use"], recipe.learner.ranks >= 4) == (1e-6, "vllm", True)


@pytest.mark.parametrize("command", [command for command in PAPERS if "--preset" in command])
def test_what_a_preset_publishes_about_rollouts_is_what_the_command_does(command: str) -> None:
    """Where the paper had another task for the numbers, the recipe says so; ALFWorld's are the presets' own."""
    published, recipe = load_preset(shlex.split(command)[2]).rollout, recipe_of(command)
    if published.group_size is not None:
        assert recipe.rollout.group_size == published.group_size
    if not command.startswith("papers/alfworld"):
        return
    assert recipe.trainer.groups_per_update == published.groups_per_update
    assert published.response_tokens in (None, recipe.agent.max_tokens)
    assert published.max_steps in (None, recipe.rollout.max_turns)
    assert published.temperature in (None, recipe.agent.temperature)


def test_each_published_model_and_the_presets_of_each_paper_have_a_command() -> None:
    used = {recipe_of(command).policy.model.removeprefix("models/") for command in PAPERS}
    assert used == set(SIZES)
    presets = {shlex.split(command)[2] for command in PAPERS}
    assert presets >= {"steppo-v4", "capo-v5", "stepopsd-paper", "rtpo-paper", "token-ppo-fair", "grpo", "seeupo-paper"}


@pytest.mark.parametrize("command", SMALL)
def test_every_command_at_cpu_size_is_a_run(command: str) -> None:
    words = [word for word in shlex.split(command) if word != "--algorithm"]
    settings = [f"algorithm.use={word}" if word in ALGORITHMS else word for word in words]
    seen = outlook(what_to_run(settings, None, Path("run"))[0], Path("run"))
    assert seen.model.parameters < 500_000


def test_every_algorithm_has_a_command_at_cpu_size() -> None:
    named = {recipe.removeprefix("lookup --algorithm ").split()[0] for recipe in SMALL if "--algorithm" in recipe}
    assert named | {"steppo"} == set(ALGORITHMS)


def test_every_recipe_is_in_the_readme_and_names_known_settings() -> None:
    text = (RECIPES / "README.md").read_text(encoding="utf-8")
    for file in RECIPES.rglob("*.yaml"):
        name = str(file.relative_to(RECIPES).with_suffix(""))
        assert f"[`{name}`]" in text
        assert find_recipe(name) == file
        load_config(RecipeConfig, file)
