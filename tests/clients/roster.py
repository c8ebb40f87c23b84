"""The clients that are driven: one row of the table each, with the command and what a green row looks like."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.clients import packages
from tests.clients.models import RANDOM, SMOLLM2
from tests.clients.packages import Package
from tests.clients.sandbox import MODEL, Site
from tests.clients.tutor import DELEGATED, QUESTION, SUM, Lesson

_PROGRAMS = Path(__file__).parent / "programs"
_OPENCLAW = packages.OPENCLAW.path / "node_modules/openclaw/openclaw.mjs"
_CLAUDE = packages.CLAUDE_CODE.path / "node_modules/.bin/claude"
_FIRST = f"{QUESTION} what is the sum?"
_SECOND = f"{QUESTION} and once more?"


@dataclass(frozen=True, kw_only=True)
class Client:
    """A way to use one client, in one dialect."""

    name: str
    package: Package
    dialect: str
    command: Callable[[Site], Sequence[str | Path]]
    files: Callable[[Site], Mapping[str, str]] = lambda site: {}
    """The client's own settings, by path in the home."""
    model: str = SMOLLM2
    lesson: Lesson = field(default_factory=Lesson)
    streams: bool = True
    calls_tools: bool = True
    tool_result: str = "sunny"
    """What a request must contain once a tool has run."""
    trajectories: int = 1
    """How many trajectories its calls are, as it sees them."""
    forks: Mapping[str, int] = field(default_factory=dict)
    """Steps, by reason, that do not go on from one before because of what the client does; `root` apart."""
    forkable: bool = False
    """Whether it was seen to do the same again when it is answered the same, so that it is forked at each step."""
    seconds: float = 120.0
    """After so long it is killed."""


def _python(package: Package, program: str, *arguments: str) -> Callable[[Site], Sequence[str | Path]]:
    return lambda site: [package.path / "bin/python", _PROGRAMS / program, *arguments]


def _node(package: Package, program: str, *arguments: str) -> Callable[[Site], Sequence[str | Path]]:
    return lambda site: ["node", _PROGRAMS / program, package.path, *arguments]


def _twice(program: Path, first: Sequence[str], second: Sequence[str]) -> Callable[[Site], Sequence[str | Path]]:
    """A command line that is run for one question, and again for the next one of the same conversation."""
    both = [shlex.join([str(program), *arguments]) for arguments in (first, second)]
    return lambda site: ["bash", "-c", " && ".join(both)]


def _claude_code(name: str, *flags: str, forkable: bool = False) -> Client:
    common = ["--model", MODEL, "--allowedTools", "Bash", "--output-format", "json", *flags]
    return Client(
        name=name,
        package=packages.CLAUDE_CODE,
        dialect="messages",
        command=_twice(_CLAUDE, ["-p", _FIRST, *common], ["-p", _SECOND, "--continue", *common]),
        model=RANDOM,
        forkable=forkable,
        tool_result=SUM,
    )


def _codex(site: Site) -> Mapping[str, str]:
    settings = {
        "model": MODEL,
        "model_provider": "stepwell",
        "model_providers.stepwell.name": "stepwell",
        "model_providers.stepwell.base_url": f"{site.url}/v1",
        "model_providers.stepwell.env_key": "OPENAI_API_KEY",
        "model_providers.stepwell.wire_api": "responses",
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    return {".codex/config.toml": "\n".join([*lines, "analytics.enabled = false\n"])}


def _openclaw(dialect: str, forks: Mapping[str, int]) -> Client:
    api = {"chat": "openai-completions", "responses": "openai-responses", "messages": "anthropic-messages"}[dialect]

    def files(site: Site) -> Mapping[str, str]:
        model = {"id": MODEL, "name": MODEL, "reasoning": False, "input": ["text"], "contextWindow": 128_000}
        provider = {
            "baseUrl": site.url if dialect == "messages" else f"{site.url}/v1",
            "apiKey": "sk-none",
            "api": api,
            "models": [{**model, "maxTokens": 8192}],
        }
        agents = {"defaults": {"model": {"primary": f"stepwell/{MODEL}"}, "workspace": str(site.project)}}
        settings = {"models": {"mode": "merge", "providers": {"stepwell": provider}}, "agents": agents}
        return {".openclaw/openclaw.json": json.dumps(settings)}

    return Client(
        name="OpenClaw",
        package=packages.OPENCLAW,
        dialect=dialect,
        command=lambda site: [
            *("node", _OPENCLAW, "agent", "exec", _FIRST, "--json"),
            *("--config", site.home / ".openclaw/openclaw.json", "--model", f"stepwell/{MODEL}"),
            *("--cwd", site.project),
        ],
        files=files,
        model=RANDOM,
        tool_result=SUM,
        forks=forks,
        seconds=240.0,
    )


def _opencode(site: Site) -> Mapping[str, str]:
    limits = {"limit": {"context": 128_000, "output": 8192}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "stepwell",
        "options": {"baseURL": f"{site.url}/v1", "apiKey": "sk-none"},
        "models": {MODEL: {"name": MODEL, "tool_call": True, **limits}},
    }
    settings = {
        "autoupdate": False,
        "share": "disabled",
        "model": f"stepwell/{MODEL}",
        "small_model": f"stepwell/{MODEL}",
        "permission": {"*": "allow"},
        "provider": {"stepwell": provider},
    }
    return {".config/opencode/opencode.json": json.dumps(settings)}


_CODEX_FLAGS = ["--dangerously-bypass-approvals-and-sandbox"]

LIGHT = (
    Client(
        name="openai (Python)",
        package=packages.OPENAI,
        dialect="chat",
        command=_python(packages.OPENAI, "openai_sdk.py", "chat"),
        lesson=Lesson(parallel=2),
        forkable=True,
    ),
    Client(
        name="openai (Python)",
        package=packages.OPENAI,
        dialect="responses",
        command=_python(packages.OPENAI, "openai_sdk.py", "responses"),
        forkable=True,
    ),
    Client(
        name="openai (Python)",
        package=packages.OPENAI,
        dialect="completions",
        command=_python(packages.OPENAI, "openai_sdk.py", "completions"),
        calls_tools=False,
        trajectories=2,
    ),
    Client(
        name="anthropic (Python)",
        package=packages.ANTHROPIC,
        dialect="messages",
        command=_python(packages.ANTHROPIC, "anthropic_sdk.py"),
        lesson=Lesson(parallel=2),
        forkable=True,
    ),
)
"""Those whose packages every development environment of this project has; the tests run them too."""

_FRAMEWORKS = tuple(
    Client(
        name=name,
        package=package,
        dialect=dialect,
        command=_python(package, program, dialect),
        forkable=name in ("langgraph", "openai-agents"),
    )
    for name, package, program, dialects in (
        ("langgraph", packages.LANGGRAPH, "langgraph_agent.py", ("chat", "responses", "messages")),
        ("openai-agents", packages.OPENAI_AGENTS, "openai_agents.py", ("responses", "chat")),
        ("pydantic-ai", packages.PYDANTIC_AI, "pydantic_ai_agent.py", ("chat", "responses", "messages")),
        ("litellm", packages.LITELLM, "litellm_sdk.py", ("chat", "messages")),
    )
    for dialect in dialects
)
_JAVASCRIPT = tuple(
    Client(name=name, package=package, dialect=dialect, command=_node(package, program, dialect))
    for name, package, program, dialects in (
        ("openai (npm)", packages.OPENAI_NODE, "openai_sdk.mjs", ("chat", "responses")),
        ("ai (Vercel)", packages.AI_SDK, "ai_sdk.mjs", ("chat", "responses", "messages")),
    )
    for dialect in dialects
)
CLIENTS = (
    *LIGHT,
    *_FRAMEWORKS,
    Client(
        name="pydantic-ai, typed",
        package=packages.PYDANTIC_AI,
        dialect="chat",
        command=_python(packages.PYDANTIC_AI, "pydantic_ai_agent.py", "chat", "typed"),
        lesson=Lesson(last="final_result"),
        streams=False,
    ),
    Client(
        name="smolagents",
        package=packages.SMOLAGENTS,
        dialect="chat",
        command=_python(packages.SMOLAGENTS, "smolagents_agent.py", "stream"),
        lesson=Lesson(results=lambda m: m.role != "assistant" and "sunny in" in m.content, last="final_answer"),
        forkable=True,
        forks={"client": 3},  # what it sends back of a call is its own text about it, and of an answer nothing
    ),
    *_JAVASCRIPT,
    _claude_code("Claude Code, bare", "--bare", forkable=True),
    _claude_code("Claude Code"),
    Client(
        name="Claude Code, subagent",
        package=packages.CLAUDE_CODE,
        dialect="messages",
        command=lambda site: [
            *(_CLAUDE, "-p", f"{QUESTION} {DELEGATED}.", "--model", MODEL),
            *("--allowedTools", "Agent", "Task", "Bash", "--output-format", "json"),
        ],
        model=RANDOM,
        tool_result=SUM,
        # The subagent begins a conversation of its own in the same session, perhaps before the call that started it is
        # stored: the client does not wait for the end of the stream.
        forks={"client": 1, "root": 2},
    ),
    Client(
        name="Codex",
        package=packages.CODEX,
        dialect="responses",
        command=_twice(
            packages.CODEX.path / "node_modules/.bin/codex",
            ["exec", *_CODEX_FLAGS, _FIRST],
            ["exec", *_CODEX_FLAGS, "resume", "--last", _SECOND],
        ),
        files=_codex,
        model=RANDOM,
        tool_result=SUM,  # which comes with a random id, so there is no forking behind it
    ),
    Client(
        name="opencode",
        package=packages.OPENCODE,
        dialect="chat",
        command=_twice(
            packages.OPENCODE.path / "node_modules/.bin/opencode",
            ["run", "-m", f"stepwell/{MODEL}", _FIRST],
            ["run", "-m", f"stepwell/{MODEL}", "-c", _SECOND],
        ),
        files=_opencode,
        model=RANDOM,
        tool_result=SUM,
    ),
    # The last message of each request is a note that the next one lacks; under responses it lasts for a whole turn.
    _openclaw("chat", {"client": 1}),
    _openclaw("responses", {}),
    _openclaw("messages", {"client": 1}),
)
"""All of them, those of one model together."""
