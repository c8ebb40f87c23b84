"""The docs name everything that a person can type or call, and their links lead somewhere."""

import re
from pathlib import Path

import pytest

from docs import generate
from stepwell.algorithms.base import AlgorithmConfig, Inputs
from stepwell.config import component_config
from stepwell.gateway.app import create_app
from stepwell.pool.store import SQLitePool
from stepwell.rendering.messages import Message
from stepwell.rollout.env import TaskSetConfig
from stepwell.types import Group, GroupInfo, Step, Trajectory, TrajectoryInfo
from tests.fakes.engines import ScriptedEngine
from tests.fakes.models import tiny_renderer

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*.md"))]
STALE = "docs/reference is older than the code: run `make docs`"


def test_the_command_reference_is_that_of_the_code() -> None:
    assert (generate.REFERENCE / "cli.md").read_text(encoding="utf-8") == generate.cli_page(), STALE


def test_the_settings_reference_is_that_of_the_code() -> None:
    assert (generate.REFERENCE / "settings.md").read_text(encoding="utf-8") == generate.settings_page(), STALE


def test_the_route_reference_names_every_route_of_the_gateway(tmp_path: Path) -> None:
    renderer = tiny_renderer("line")
    pool = SQLitePool.open(tmp_path / "pool.sqlite")
    paths = create_app(ScriptedEngine(renderer), renderer, pool).openapi()["paths"]
    pool.close()
    page = (generate.REFERENCE / "http.md").read_text(encoding="utf-8")
    # The routes for agents exist below several base paths, which the page explains once.
    shortened = re.compile(r"^(/t/\{trajectory\})?(/v1)*(?=/chat/|/models)")
    routes = {f"`{method.upper()} {shortened.sub('', path)}`" for path in paths for method in paths[path]}
    assert len(routes) > 5
    assert {route for route in routes if route not in page} == set()


def test_every_setting_says_what_it_is_for() -> None:
    silent = [f"{model.name}.{field.name}" for model in generate.settings() for field in model.fields if not field.help]
    assert silent == []


def test_every_command_and_option_says_what_it_is_for() -> None:
    silent = [command.name for command in generate.commands() if not command.help]
    silent += [f"{c.name} {option.names[0]}" for c in generate.commands() for option in c.options if not option.help]
    assert silent == []


def _code_of(page: str, folder: Path) -> Path:
    """The only Python block of a how-to, as a file."""
    text = (ROOT / "docs" / "howto" / page).read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    path = folder / "example.py"
    path.write_text(block, encoding="utf-8")
    return path


def test_the_environment_of_the_how_to_plays(tmp_path: Path) -> None:
    section = {"use": f"{_code_of('add_an_environment.md', tmp_path)}:GuessConfig"}
    tasks = component_config({}, TaskSetConfig, section).build()
    environment = tasks.make()
    assert environment.reset(tasks.tasks("train")[1])[-1].role == "user"
    higher = environment.step(Message(role="assistant", content="3"))
    found = environment.step(Message(role="assistant", content="7"))
    assert [message.content for message in higher.messages] == ["Higher."]
    assert (found.terminated, found.reward) == (True, 1.0)


def test_the_algorithm_of_the_how_to_gives_credit(tmp_path: Path) -> None:
    section = {"use": f"{_code_of('add_an_algorithm.md', tmp_path)}:LeaveOneOut"}
    algorithm = component_config({}, AlgorithmConfig, section).build()
    step = Step(id="s", trajectory_id="t", index=0, prompt_ids=[1], response_ids=[2, 3], logprobs=[-1, -1])
    trajectories = tuple(
        Trajectory(info=TrajectoryInfo(), steps=(step,), step_rewards=(reward,), reward=reward)
        for reward in (1.0, 0.0, 0.5)
    )
    credits = algorithm.assign(Group(info=GroupInfo(task_id="task", size=3), trajectories=trajectories), Inputs())
    assert [credit.advantages.tolist() for credit in credits] == [[0.75] * 2, [-0.75] * 2, [0.0] * 2]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    broken = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert broken == []
