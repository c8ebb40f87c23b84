"""The docs name everything that a person can type or call, and their links lead somewhere."""

import inspect
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import get_args

import pytest
from fastapi import FastAPI
from starlette.routing import Route

from docs import generate
from stepwell.algorithms import ALGORITHMS
from stepwell.algorithms.base import AlgorithmConfig, Inputs
from stepwell.config import component_config
from stepwell.engines import ENGINES
from stepwell.errors import InvalidRequest
from stepwell.gateway import callers, observe
from stepwell.gateway.app import create_app
from stepwell.gateway.keys import SCOPES, KeyRing
from stepwell.pool.store import SQLitePool
from stepwell.rendering.formats import TOOL_FORMATS
from stepwell.rendering.formats.base import ToolFormat
from stepwell.rendering.messages import Message, Tool
from stepwell.rollout.env import TaskSetConfig
from stepwell.types import Fork, Group, GroupInfo, Side, Step, Trajectory, TrajectoryInfo
from tests.fakes.engines import ScriptedEngine
from tests.fakes.models import tiny_renderer

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*.md"))]
STALE = "docs/reference is older than the code: run `make docs`"


@pytest.fixture
def app(tmp_path: Path) -> Iterator[FastAPI]:
    renderer = tiny_renderer("line")
    pool = SQLitePool.open(tmp_path / "pool.sqlite")
    yield create_app(ScriptedEngine(renderer), renderer, pool)
    pool.close()


def test_the_reference_is_that_of_the_code() -> None:
    old = [path.name for path, text in generate.pages().items() if path.read_text(encoding="utf-8") != text]
    assert old == [], STALE


def test_the_route_reference_names_every_route_of_the_gateway(app: FastAPI) -> None:
    documented = {
        f"`{method.upper()} {path}`"
        for path, item in app.openapi()["paths"].items()
        for method in item.keys() - {"servers"}
    }
    page = (generate.REFERENCE / "http.md").read_text(encoding="utf-8")
    assert {route for route in documented if route not in page} == set()
    assert {route for route in _routed(app) if route not in page} == set()


def _routed(app: FastAPI) -> set[str]:
    """What the router answers, without the base URLs, below which each route for agents is the same."""
    ends = "chat|completions|responses|messages|tokenize|embeddings|models|api"
    base = re.compile(rf"^(/t/\{{trajectory\}})?(/v1)*(?=/({ends})|$)")
    paths = [
        (route, base.sub("", route.path).replace(":path}", "}")) for route in app.routes if isinstance(route, Route)
    ]
    # Starlette answers HEAD wherever it answers GET.
    return {f"`{method} {path or '/'}`" for route, path in paths for method in route.methods - {"HEAD"}}


def test_the_gateway_page_names_every_fork_side_call_and_header(app: FastAPI) -> None:
    page = (generate.REFERENCE / "gateway.md").read_text(encoding="utf-8")
    assert [name for name in (*get_args(Fork), *get_args(Side)) if name and f"| `{name}` |" not in page] == []
    answered = app.openapi()["paths"]["/chat/completions"]["post"]["responses"]["200"]["headers"]
    assert [name for name in answered if f"| `{name}` |" not in page] == []
    read = set(re.findall(r'"([a-z]+(?:-[a-z]+)+)"', inspect.getsource(callers)))
    assert len(read) > 8
    assert {name for name in read if f"`{name}`" not in page} == set()
    told = set(re.findall(r'"(gen_ai\.[a-z_.]+)"', inspect.getsource(observe)))
    assert {name for name in told if f"`{name}`" not in page} == set()


def test_the_table_of_tool_formats_says_which_calls_each_can_be_forced_to() -> None:
    page = (generate.REFERENCE / "gateway.md").read_text(encoding="utf-8")
    table = page.partition("## Tool formats")[2].partition("##")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| ([\w ]+) \|$", table, re.MULTILINE))
    assert rows == {name: _forced(form) for name, form in TOOL_FORMATS.items()}


def _forced(form: ToolFormat) -> str:
    tools = [Tool(name=name, description="", parameters={"type": "object", "properties": {}}) for name in ("a", "b")]
    try:
        form.forced(tools[:1])
    except InvalidRequest:
        return "nothing"
    try:
        form.forced(tools)
    except InvalidRequest:
        return "one named tool"
    return "any"


def test_the_file_of_keys_is_described_field_by_field(tmp_path: Path) -> None:
    KeyRing.open(tmp_path / "keys.json").create("k", ["agent"])
    shape = json.loads((tmp_path / "keys.json").read_text())
    (key,) = shape.pop("keys")
    page = (generate.REFERENCE / "files.md").read_text(encoding="utf-8")
    assert [name for name in (*shape, *(f"keys[].{field}" for field in key)) if f"`{name}`" not in page] == []


@pytest.mark.parametrize(
    ("page", "names"),
    [("serve_from_an_upstream.md", ENGINES), ("run_beyond_loopback.md", SCOPES)],
    ids=["engines", "scopes"],
)
def test_every_engine_and_scope_has_its_line_in_a_how_to(page: str, names: Iterable[str]) -> None:
    text = (ROOT / "docs" / "howto" / page).read_text(encoding="utf-8")
    assert [name for name in names if f"| `{name}` |" not in text] == []


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 100


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
def test_relative_links_lead_to_files_and_their_headings(page: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    broken = [target for target in targets if "://" not in target and not _leads_somewhere(page, target)]
    assert broken == []


def _leads_somewhere(page: Path, target: str) -> bool:
    place, _, anchor = target.partition("#")
    path = page.parent / place if place else page
    return path.exists() and (not anchor or anchor in _anchors(path))


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_algorithm_has_its_line_where_one_is_chosen() -> None:
    page = (generate.REFERENCE.parent / "howto" / "choose_an_algorithm.md").read_text(encoding="utf-8")
    assert [name for name in ALGORITHMS if f"`{name}`" not in page] == []
