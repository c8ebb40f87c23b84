from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from stepwell.config import Config, load_config
from stepwell.errors import ConfigError


class Optimizer(Config):
    learning_rate: float = Field(default=1e-6, gt=0)
    """Step size of AdamW."""
    betas: tuple[float, float] = (0.9, 0.999)


class Recipe(Config):
    name: str = "demo"
    seed: int = 0
    optimizer: Optimizer = Optimizer()


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "recipe.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def complaint(path: Path | None, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(Recipe, path, overrides)
    return str(caught.value)


def test_without_a_file_the_defaults_hold() -> None:
    assert load_config(Recipe, None) == Recipe()


@pytest.mark.parametrize("text", ["", "# only a comment\n", "{}"])
def test_an_empty_file_means_the_defaults(tmp_path: Path, text: str) -> None:
    assert load_config(Recipe, write(tmp_path, text)) == Recipe()


def test_the_file_is_read_and_what_it_leaves_out_keeps_its_default(tmp_path: Path) -> None:
    path = write(tmp_path, "name: größer\noptimizer:\n  learning_rate: 0.5\n")
    assert load_config(Recipe, path) == Recipe(name="größer", optimizer=Optimizer(learning_rate=0.5))


def test_overrides_win_over_the_file_and_the_last_wins(tmp_path: Path) -> None:
    path = write(tmp_path, "seed: 1\noptimizer:\n  betas: [0.8, 0.9]\n")
    loaded = load_config(Recipe, path, ["seed=2", "optimizer.learning_rate=0.25", "seed=3"])
    assert (loaded.seed, loaded.optimizer) == (3, Optimizer(learning_rate=0.25, betas=(0.8, 0.9)))


def test_choosing_another_component_drops_the_settings_of_the_one_before(tmp_path: Path) -> None:
    class Chooses(Config):
        part: Mapping[str, object]

    path = write(tmp_path, "part: {use: first, size: 3}")
    assert load_config(Chooses, path, ["part.use=second", "part.depth=1"]).part == {"use": "second", "depth": 1}
    assert load_config(Chooses, path, ["part.use=first"]).part == {"use": "first", "size": 3}


def test_an_override_is_a_yaml_value_and_may_hold_an_equals_sign() -> None:
    loaded = load_config(Recipe, None, ["name=a=b", "optimizer.betas=[0.5, 0.75]"])
    assert (loaded.name, loaded.optimizer.betas) == ("a=b", (0.5, 0.75))
    assert load_config(Recipe, None, ["name="]).name == ""
    assert load_config(Recipe, None, ["optimizer={learning_rate: 2.0}"]).optimizer.learning_rate == 2.0


@given(st.integers(), st.floats(1e-300, 1e300))
def test_numbers_survive_an_override(seed: int, rate: float) -> None:
    loaded = load_config(Recipe, None, [f"seed={seed}", f"optimizer.learning_rate={rate!r}"])
    assert (loaded.seed, loaded.optimizer.learning_rate) == (seed, rate)


def test_an_unknown_key_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    assert complaint(write(tmp_path, "sed: 1")) == "sed: unknown setting; did you mean 'seed'?"
    assert complaint(None, "optimizer.learning_rat=1") == (
        "optimizer.learning_rat: unknown setting; did you mean 'learning_rate'?"
    )


def test_an_unknown_key_that_is_near_to_none_is_refused_with_all_that_exist() -> None:
    assert complaint(None, "zzz=1") == "zzz: unknown setting; known keys: name, optimizer, seed"


def test_all_mistakes_are_named_at_once(tmp_path: Path) -> None:
    lines = complaint(write(tmp_path, "seed: many\noptimizer: {learning_rate: -1, beta: 0}")).splitlines()
    assert [line.split(":")[0] for line in lines] == ["seed", "optimizer.learning_rate", "optimizer.beta"]
    assert "got 'many'" in lines[0]


@pytest.mark.parametrize("override", ["seed", "=1", "seed:1"])
def test_an_override_without_key_or_equals_sign_is_refused(override: str) -> None:
    assert "must look like section.key=value" in complaint(None, override)


def test_an_override_inside_a_plain_value_is_refused() -> None:
    assert "seed is a value, not a section" in complaint(None, "seed=1", "seed.deeper=2")


def test_an_override_that_is_not_yaml_is_refused() -> None:
    assert "is not a YAML value" in complaint(None, "name=[1, 2")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert complaint(tmp_path / "none.yaml").startswith(f"cannot read {tmp_path / 'none.yaml'}: ")
    assert complaint(tmp_path).startswith(f"cannot read {tmp_path}: ")


@pytest.mark.parametrize("text", ["a: [1", "a: b: c", b"\xff\xfe\x00", "a:\n\t- 1"], ids=repr)
def test_a_file_that_is_not_yaml_is_named(tmp_path: Path, text: str | bytes) -> None:
    assert "recipe.yaml is not valid YAML" in complaint(write(tmp_path, text))


@pytest.mark.parametrize(("text", "kind"), [("- 1", "list"), ("just words", "str"), ("3", "int")])
def test_a_file_that_holds_no_mapping_is_refused(tmp_path: Path, text: str, kind: str) -> None:
    assert f"must hold a mapping of settings, got a {kind}" in complaint(write(tmp_path, text))


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Recipe().seed = 1  # type: ignore[misc]


def test_the_docstring_of_a_field_is_its_description() -> None:
    assert Optimizer.model_fields["learning_rate"].description == "Step size of AdamW."


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_no_setting_is_nan_or_infinite(number: float) -> None:
    class Numbers(Config):
        one: float = 0.0
        several: tuple[float, ...] = ()

    for settings in ({"one": number}, {"several": (1.0, number)}):
        with pytest.raises(ValidationError, match="finite"):
            Numbers(**settings)
