"""What `stepwell doctor` looks at of the machine: hardware, programs, ports and folders."""

import os
import platform
import resource
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from stepwell.cache import cache_directory
from stepwell.cli.serving import check_port
from stepwell.environments.sandbox.bubblewrap import BubblewrapConfig
from stepwell.errors import InvalidRequest, StepwellError

State = Literal["ok", "missing", "wrong"]

_GATEWAY_PORT: Final = 8000
_FREE: Final = 2
"""GiB of a disk."""
_OPEN_FILES: Final = 4096
"""A gateway has one for each connection."""
_CHROMIUM: Final = ("chromium", "chromium-browser", "google-chrome")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    found: str
    state: State = "ok"
    purpose: str = ""
    """What it is needed for."""
    remedy: str = ""
    """How to get it, or to put it right."""


def machine() -> Iterator[Finding]:
    """Processor, memory and GPUs."""
    yield Finding("Python", platform.python_version())
    yield Finding("cores", str(os.cpu_count()))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    yield _judged("memory", f"{memory:.0f} GiB", memory >= 4, "training", "SmolLM2 needs 4 GiB; `lookup` less than 1")
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = files == resource.RLIM_INFINITY
    found = "unlimited" if unlimited else str(files)
    enough = unlimited or files >= _OPEN_FILES
    yield _judged("open files", found, enough, "thousands of agents at a gateway", f"ulimit -n {_OPEN_FILES}")
    gpus = _gpus()
    yield from (Finding("GPU", gpu) for gpu in gpus or ["none: the CPU is used"])


def _gpus() -> list[str]:
    """Each NVIDIA GPU with its memory, as its driver tells: that needs no torch, and takes no memory of it."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=name,memory.total,memory.free,driver_version", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return [f"nvidia-smi fails: {error}"]
    rows = [row.split(", ") for row in told.splitlines() if row.count(", ") == 3]
    return [f"{name}, {total}, {free} free, driver {driver}" for name, total, free, driver in rows]


def programs() -> Iterator[Finding]:
    """Programs that some features call."""
    yield _bubblewrap()
    yield _program("Java", ("java",), "the environment textworld_express", "apt-get install default-jre-headless")
    remedy = "apt-get install chromium"
    yield _program("Chromium", _CHROMIUM, "tests of the dashboard; it needs none itself", remedy)
    yield _postgres()


def _bubblewrap() -> Finding:
    purpose = "the sandbox bubblewrap, and rollout commands in isolation"
    try:
        BubblewrapConfig().build()
    except StepwellError as error:
        state: State = "missing" if shutil.which("bwrap") is None else "wrong"
        return Finding("bubblewrap", "", state, purpose, str(error))
    return Finding("bubblewrap", str(shutil.which("bwrap")), purpose=purpose)


def _program(what: str, names: tuple[str, ...], purpose: str, remedy: str) -> Finding:
    path = next(filter(None, map(shutil.which, names)), None)
    return Finding(what, path or "", "ok" if path else "missing", purpose, remedy)


def _postgres() -> Finding:
    """The pool's own server if there is one, else whether one could be started here."""
    purpose = "a pool for several machines; SQLite serves one"
    location = os.environ.get("STEPWELL_POOL", "")
    if location.startswith("postgresql"):
        return _reached(location, purpose)
    here = [*Path("/usr/lib/postgresql").glob("*/bin/postgres"), *filter(None, [shutil.which("postgres")])]
    remedy = "apt-get install postgresql, or set STEPWELL_POOL=postgresql://… to one elsewhere"
    return Finding("PostgreSQL", str(here[-1]) if here else "", "ok" if here else "missing", purpose, remedy)


def _reached(location: str, purpose: str) -> Finding:
    try:
        import psycopg  # noqa: PLC0415  # an extra
    except ImportError:
        return Finding("PostgreSQL", "STEPWELL_POOL", "missing", purpose, "pip install 'stepwell[postgres]'")
    try:
        with psycopg.connect(location.replace("+psycopg", "", 1), connect_timeout=3) as connection:
            version = connection.info.parameter_status("server_version")
    except psycopg.Error as error:  # without its text, which may have the password
        remedy = f"start the server, or correct STEPWELL_POOL ({type(error).__name__})"
        return Finding("PostgreSQL", "STEPWELL_POOL cannot be reached", "wrong", purpose, remedy)
    return Finding("PostgreSQL", f"{version}, at STEPWELL_POOL", purpose=purpose)


def places() -> Iterator[Finding]:
    """Ports and folders."""
    try:
        check_port(_GATEWAY_PORT)
        yield Finding(f"port {_GATEWAY_PORT}", "free", purpose="the gateway, unless it is given another")
    except InvalidRequest:
        remedy = "stop what listens there, or give --port"
        yield Finding(f"port {_GATEWAY_PORT}", "taken", "wrong", "the gateway, unless it is given another", remedy)
    for what, folder in (("cache", cache_directory()), ("runs", Path("runs").absolute())):
        existing = next(p for p in (folder, *folder.parents) if p.exists())
        free = shutil.disk_usage(existing).free / 2**30
        good = os.access(existing, os.W_OK) and free > _FREE
        purpose = "models and data sets" if what == "cache" else "checkpoints and pools"
        yield _judged(what, f"{folder}, {free:.0f} GiB free", good, purpose, f"make it writable, free {_FREE} GiB")


def _judged(what: str, found: str, good: bool, purpose: str, remedy: str) -> Finding:
    return Finding(what, found, "ok" if good else "wrong", purpose, remedy)
