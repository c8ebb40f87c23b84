"""The real clients as their registries ship them: which versions, and where each is installed.

Every one has a folder of its own below `.clients/`, so none sees the packages of another or of this project.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2] / ".clients"


@dataclass(frozen=True, kw_only=True)
class Package:
    """What one folder holds."""

    folder: str
    """`py/…` is a virtual environment, `npm/…` what npm installed."""
    pins: tuple[str, ...]
    """Requirements as pip or npm takes them; the first is the client itself."""

    @property
    def path(self) -> Path:
        return ROOT / self.folder

    @property
    def version(self) -> str:
        return self.pins[0].lstrip("@").partition("@")[2] or self.pins[0].partition("==")[2]

    @property
    def installed(self) -> bool:
        """Whether exactly these pins are there: the file is written last."""
        stamp = self.path / "installed.json"
        return stamp.exists() and json.loads(stamp.read_text()) == list(self.pins)

    def install(self) -> None:
        """Make the folder anew. Raises CalledProcessError if the registry's client fails."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True)
        if self.folder.startswith("py/"):
            _pip(self.path, self.pins)
        else:
            _npm(self.path, self.pins)
        (self.path / "installed.json").write_text(json.dumps(list(self.pins)))


def _pip(path: Path, pins: Sequence[str]) -> None:
    subprocess.run([sys.executable, "-m", "venv", path], check=True)
    subprocess.run([path / "bin/python", "-m", "pip", "install", "-qq", *pins], check=True)


def _npm(path: Path, pins: Sequence[str]) -> None:
    (path / "package.json").write_text('{"private": true}')
    command = ["npm", "install", "--loglevel=error", "--no-audit", "--no-fund", *pins]
    subprocess.run(command, cwd=path, check=True, env={**os.environ, "PATH": search_path()})


def search_path() -> str:
    """`PATH` with the Node that the newer command lines ask for; npm picks older releases of them for an older one."""
    return os.pathsep.join([str(NODE.path / "node_modules/node/bin"), os.environ["PATH"]])


NODE = Package(folder="npm/node", pins=("node@24.16.0",))
OPENAI = Package(folder="py/openai", pins=("openai==3.57.0",))
ANTHROPIC = Package(folder="py/anthropic", pins=("anthropic==2.14.0",))
LANGGRAPH = Package(
    folder="py/langgraph",
    pins=("langgraph==1.2.24", "langchain==1.5.2", "langchain-openai==1.7.4", "langchain-anthropic==1.7.10"),
)
OPENAI_AGENTS = Package(folder="py/openai-agents", pins=("openai-agents==0.24.0",))
PYDANTIC_AI = Package(folder="py/pydantic-ai", pins=("pydantic-ai-slim[openai,anthropic]==2.68.0",))
SMOLAGENTS = Package(folder="py/smolagents", pins=("smolagents[openai]==1.26.0",))
LITELLM = Package(folder="py/litellm", pins=("litellm==1.110.2",))
OPENAI_NODE = Package(folder="npm/openai", pins=("openai@6.49.0",))
AI_SDK = Package(
    folder="npm/ai",
    pins=(
        "ai@6.0.326",
        "@ai-sdk/openai-compatible@2.0.92",
        "@ai-sdk/openai@3.0.141",
        "@ai-sdk/anthropic@3.0.140",
        "zod@4.6.7",
    ),
)
CLAUDE_CODE = Package(folder="npm/claude-code", pins=("@anthropic-ai/claude-code@2.1.332",))
CODEX = Package(folder="npm/codex", pins=("@openai/codex@0.171.0",))
OPENCODE = Package(folder="npm/opencode", pins=("opencode-ai@1.18.33",))
OPENCLAW = Package(folder="npm/openclaw", pins=("openclaw@2026.9.6",))
