"""The docs name everything that a person can type or call, and their links lead somewhere."""

import importlib.util
import re
from pathlib import Path

import pytest

from docs import generate

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*.md"))]
STALE = "docs/reference is older than the code: run `make docs`"


def _needs(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not written yet")


def test_the_command_reference_is_that_of_the_code() -> None:
    _needs("stepwell.cli.main")
    assert (generate.REFERENCE / "cli.md").read_text(encoding="utf-8") == generate.cli_page(), STALE


def test_the_settings_reference_is_that_of_the_code() -> None:
    assert (generate.REFERENCE / "settings.md").read_text(encoding="utf-8") == generate.settings_page(), STALE


def test_every_setting_says_what_it_is_for() -> None:
    silent = [f"{model.name}.{field.name}" for model in generate.settings() for field in model.fields if not field.help]
    assert silent == []


def test_every_command_and_option_says_what_it_is_for() -> None:
    _needs("stepwell.cli.main")
    silent = [command.name for command in generate.commands() if not command.help]
    silent += [f"{c.name} {option.names[0]}" for c in generate.commands() for option in c.options if not option.help]
    assert silent == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    broken = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert broken == []
