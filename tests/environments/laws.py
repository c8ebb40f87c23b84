"""The laws of environments, checked on every task set in `CASES`.

To put an environment under them, add a `Case`: how to make its task set, and one or more scripts, each a sequence of
assistant messages that brings any of its episodes to an end at the last message of the script.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from stepwell.environments.agentdojo import AgentDojoConfig
from stepwell.environments.alfworld import AlfWorldConfig, make_games
from stepwell.environments.bfcl import BFCLConfig
from stepwell.environments.chain import ChainConfig
from stepwell.environments.cipher import CipherConfig
from stepwell.environments.functions import FunctionsConfig
from stepwell.environments.gymnasium_text import GymnasiumTextConfig
from stepwell.environments.lookup import LookupConfig
from stepwell.environments.math_python import MathPythonConfig
from stepwell.environments.mcp_tools import MCPConfig
from stepwell.environments.openenv import OpenEnvConfig
from stepwell.environments.search_qa import SearchQAConfig
from stepwell.environments.textworld_express import TextWorldExpressConfig
from stepwell.environments.verifiers_env import VerifiersConfig
from stepwell.environments.verifiers_tasks import VerifiersTasksConfig
from stepwell.errors import ConfigError, MissingDependency
from stepwell.rendering.messages import Message, ToolCall
from stepwell.rollout.env import Outcome, TaskSet
from stepwell.rollout.episode import Episode
from tests.environments.servers import mcp_url, openenv_url

Script = tuple[Message, ...]


@dataclass(frozen=True)
class Case:
    """A task set and scripts that end its episodes."""

    name: str
    make: Callable[[Path], TaskSet]
    """Given a fresh folder that it may write its data into."""
    scripts: tuple[Script, ...]


def say(text: str) -> Message:
    """An assistant message without a tool call."""
    return Message(role="assistant", content=text)


def call(name: str, **arguments: object) -> Message:
    """An assistant message with one tool call."""
    text = json.dumps(arguments)
    return Message(role="assistant", tool_calls=(ToolCall(id=f"call-{name}", name=name, arguments=text),))


def play(tasks: TaskSet, task_id: str, script: Sequence[Message], seed: int = 0) -> list[Outcome]:
    """What a script brings in a fresh episode."""

    async def played() -> list[Outcome]:
        episode = await Episode.begin(tasks, task_id, seed=seed)
        try:
            return [await episode.step(action) for action in script]
        finally:
            await episode.close()

    return asyncio.run(played())


def opened(tasks: TaskSet, task_id: str, seed: int = 0) -> tuple[Message, ...]:
    """What a task begins with."""

    async def begun() -> tuple[Message, ...]:
        episode = await Episode.begin(tasks, task_id, seed=seed)
        await episode.close()
        return episode.opening

    return asyncio.run(begun())


FACTS = (
    ("Quell", "Marn", "Marn is the capital of Quell. It lies on the river Oss."),
    ("Sorrel", "Tibb", "Tibb is the capital of Sorrel. Its harbour is the largest in the north."),
    ("Vantor", "Ashe", "Ashe is the capital of Vantor, a city of seven hills."),
)


def hotpot_file(folder: Path, count: int = 12) -> Path:
    """A small file of our own in HotpotQA's form: made-up capitals, one paragraph each."""
    context = [[city, [text]] for _, city, text in FACTS]
    rows = [
        {"id": f"row-{number}", "question": f"What is the capital of {land} ({number})?", "answer": city}
        | {"type": "bridge", "level": "easy", "context": context}
        for number, (land, city, _) in enumerate((FACTS * count)[:count])
    ]
    path = folder / "hotpot.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def _search_qa(folder: Path) -> TaskSet:
    return SearchQAConfig(dataset="hotpot", path=hotpot_file(folder), max_turns=3, demonstrations=2).build()


SHOP = '''
"""A shop with a basket: tools as methods, a reward, and tasks."""


class Shop:
    def __init__(self, task, seed):
        self.basket = []
        self.price = task["price"] + seed

    def add(self, item: str, count: int = 1) -> str:
        """Put something into the basket.

        Args:
            item: What.
            count: How many.
        """
        if count < 1:
            raise ValueError("count must be at least 1")
        self.basket += [item] * count
        return f"{len(self.basket)} in the basket"

    async def total(self) -> int:
        """What the basket costs."""
        return self.price * len(self.basket)


def reward(played):
    return {"right": float(played.answer == str(len(played.world.basket))), "calls": 0.1 * len(played.calls)}


TASKS = [{"prompt": f"Buy {n} apples, and say how many you have.", "price": n, "type": "fruit"} for n in range(1, 21)]
'''


def shop_file(folder: Path) -> Path:
    """A file of our own that makes an environment of Python functions."""
    path = folder / "shop.py"
    path.write_text(SHOP, encoding="utf-8")
    return path


def _functions(folder: Path, **settings: object) -> TaskSet:
    path = shop_file(folder)
    names = {"tools": f"{path}:Shop", "reward": f"{path}:reward", "tasks": f"{path}:TASKS"}
    return FunctionsConfig.model_validate({**names, "max_turns": 3, **settings}).build()


_SHOPPING: tuple[Script, ...] = (
    (call("add", item="apple", count=2), call("total"), say("2")),
    (call("add", item="apple", count=0), call("nonsense"), call("add", count="two")),
    (say("0"),),
)


def _math(sandbox: str) -> TaskSet:
    try:
        return MathPythonConfig.model_validate({"max_turns": 3, "sandbox": {"use": sandbox, "seconds": 20}}).build()
    except (MissingDependency, ConfigError) as error:
        pytest.skip(str(error))


_COMPUTING: tuple[Script, ...] = (
    (call("python", code="import random\nx = 6\nprint(x, random.random())"), call("python", code="print(x)"), say("6")),
    (call("python", code="1 / 0"), call("nonsense"), call("python", text="wrong key")),
    (call("answer", text="42"),),
)


def optional(make: Callable[[], TaskSet]) -> TaskSet:
    """A task set whose package may be missing, which skips the test."""
    try:
        return make()
    except MissingDependency as error:
        pytest.skip(str(error))


def answers_file(folder: Path) -> Path:
    """Tasks of our own for a server that knows capitals."""
    path = folder / "capitals.jsonl"
    rows = [{"prompt": f"What is the capital of Quell? ({number})", "answer": "Marn"} for number in range(12)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _mcp(folder: Path, **settings: object) -> TaskSet:
    named = {"url": optional_url(mcp_url), "tasks": str(answers_file(folder)), "max_turns": 3}
    return MCPConfig.model_validate({**named, **settings}).build()


def _beside(reference: str) -> str:
    return f"{Path(__file__).parent}/{reference}"


def optional_url(serve: Callable[[], str]) -> str:
    """The URL of a server of ours whose package may be missing, which skips the test."""
    try:
        return serve()
    except ImportError as error:
        pytest.skip(str(error))


_ASKING: tuple[Script, ...] = (
    (call("capital", land="Quell"), call("repeat", text="ab", times=3), say("Marn")),
    (call("capital", land="Nowhere"), call("nonsense"), call("capital", text="wrong key")),
    (say("I do not know."),),
)


def _alfworld(folder: Path, interface: Literal["tool", "text"], *, admissible: bool) -> TaskSet:
    """Two games of the quickest kind to train on, and one to test on."""

    def made() -> TaskSet:
        for split, count in (("train", 2), ("valid_unseen", 1)):
            make_games(folder, count, ["look_at_obj_in_light"], split=split)
        return AlfWorldConfig(path=folder, interface=interface, admissible=admissible, max_steps=3).build()

    return optional(made)


def _express(interface: Literal["tool", "text"]) -> TaskSet:
    return optional(TextWorldExpressConfig(interface=interface, admissible=True, max_steps=3).build)


def _climb(name: str) -> TaskSet:
    config = GymnasiumTextConfig(id=f"tests.environments.text_games:{name}-v0", max_steps=3, tasks=9)
    return optional(config.build)


def _gem(name: str) -> TaskSet:
    return optional(GymnasiumTextConfig(id=name, library="gem", max_steps=3, tasks=9).build)


_ACTING: tuple[Script, ...] = (
    (call("act", command="look"), call("act", command="look around"), call("act", command="inventory")),
    (call("act", command="dance"), call("nonsense"), call("act", text="wrong key")),
    (say("look"), say(""), call("act", command=" ")),
)
_SPEAKING: tuple[Script, ...] = (
    (say("up"), say("look around"), say("inventory")),
    (say("I dance.\n> look"), say(""), call("nonsense")),
)

CASES: tuple[Case, ...] = (
    Case("alfworld", lambda folder: _alfworld(folder, "tool", admissible=False), _ACTING),
    Case("alfworld-text", lambda folder: _alfworld(folder, "text", admissible=True), _SPEAKING),
    Case("textworld_express", lambda _: _express("tool"), _ACTING),
    Case("textworld_express-text", lambda _: _express("text"), _SPEAKING),
    Case("gymnasium", lambda _: _climb("Climb"), _SPEAKING),
    Case("gymnasium-replay", lambda _: _climb("Rooted"), _SPEAKING),
    Case("gem", lambda _: _gem("game:Game2048-v0-easy"), ((say(r"\boxed{up}"), say(r"\boxed{left}"), say("x")),)),
    Case(
        "agentdojo",
        lambda _: optional(AgentDojoConfig(suites=("workspace",), max_turns=3).build),
        (
            (
                call("get_current_day"),
                call("send_email", recipients=["ada@example.com"], subject="Lunch", body="At one?"),
                say("Done."),
            ),
            (call("create_file", filename="a.txt", content="b"), call("nonsense"), call("get_day", text="wrong key")),
            (say("I do not know."),),
        ),
    ),
    Case(
        "bfcl",
        lambda _: optional(BFCLConfig(max_steps=3, turn_weight=0.5).build),
        (
            (call("ls", a=True), call("mkdir", dir_name="there"), call("ls")),
            (call("cd", folder="document"), say("Done."), call("ls"), call("nonsense"), call("cd", text="wrong key")),
        ),
    ),
    Case(
        "openenv",
        lambda _: OpenEnvConfig(url=optional_url(openenv_url), max_turns=3).build(),
        (
            (call("act", by=1), call("act", by=1), call("act", by=20)),
            (call("act", by=0), call("nonsense"), call("act", text="wrong key")),
        ),
    ),
    Case("mcp", _mcp, _ASKING),
    Case(
        "verifiers",
        lambda _: optional(VerifiersConfig(environment=_beside("verifiers_legacy.py:load_doubling")).build),
        (
            (call("double", x=2), call("double", x=3), say("4")),
            (call("double", x="two"), call("nonsense"), call("double", text="wrong key")),
            (say("I do not know."),),
        ),
    ),
    Case(
        "verifiers_tasks",
        lambda _: optional(VerifiersTasksConfig(taskset=_beside("verifiers_current.py:Sums"), most=50).build),
        ((say("1"),), (call("nonsense"),)),
    ),
    Case("mcp-read_only", lambda folder: _mcp(folder, read_only=True), _ASKING),
    Case(
        "chain",
        lambda _: ChainConfig(turns=3).build(),
        (
            (call("act", action="a"), say("b"), call("act", action="c")),
            (say("north"), call("nonsense"), call("act", text="wrong key")),
        ),
    ),
    Case(
        "cipher",
        lambda _: CipherConfig(turns=3, delay=1).build(),
        ((say("abcd"), say("dcba"), say("aaaa")), (say("no word"), call("nonsense"), say(""))),
    ),
    Case("functions", _functions, _SHOPPING),
    Case("functions-copy", lambda folder: _functions(folder, fork="copy"), _SHOPPING),
    Case("functions-never", lambda folder: _functions(folder, fork="never"), _SHOPPING),
    Case("math_python-monty", lambda _: _math("monty"), _COMPUTING),
    Case("math_python-bubblewrap", lambda _: _math("bubblewrap"), _COMPUTING),
    Case(
        "lookup",
        lambda _: LookupConfig(max_turns=3).build(),
        (
            (call("search", item="ab"), call("open", box="cd"), call("answer", colour="ef")),
            (call("search", item="ab"), call("open", text="wrong key"), call("nonsense")),
            (say("I do not know."),),
        ),
    ),
    Case(
        "search_qa",
        _search_qa,
        (
            (call("search", query="capital of Quell"), call("answer", text="Marn")),
            (call("search", query="zzz"), call("nonsense"), call("search", text="wrong key")),
            (say("I do not know."),),
        ),
    ),
)
