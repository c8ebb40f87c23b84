"""Where a client runs: a fresh home, no settings of this machine, and, where possible, a network of loopback alone."""

import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.clients.packages import search_path

MODEL = "stepwell-model"
"""What every client calls the model: the gateway's `model_aliases` allows any name."""
_ISOLATED = "STEPWELL_CLIENTS_ISOLATED"
_QUIET = {
    # Under every name that one of these clients uses: no telemetry, no updates, no downloads.
    "DO_NOT_TRACK": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_AUTOUPDATER": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LANGSMITH_TRACING": "false",
    "HF_HUB_OFFLINE": "1",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "PYTHONWARNINGS": "ignore",
    "NO_COLOR": "1",
    "CI": "1",
}
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


@dataclass(frozen=True, kw_only=True)
class Site:
    """What a client has to know of the place where it runs."""

    url: str
    """The gateway's, without a path."""
    home: Path

    @property
    def project(self) -> Path:
        """The working directory: a small repository."""
        return self.home / "project"


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a client ended."""

    status: int | None
    """Exit status; None: it was killed after its time."""
    output: str


def isolate() -> None:
    """Start this program again where only loopback exists, or say that this system does not let us."""
    if _ISOLATED in os.environ:
        _raise_loopback()
        return
    unshare = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]
    try:
        subprocess.run([*unshare, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        print("this system gives no network of its own, so the clients could reach more than loopback", flush=True)
        return
    os.environ[_ISOLATED] = "1"
    os.execvp("unshare", [*unshare, sys.executable, "-m", "tests.clients", *sys.argv[1:]])


def _raise_loopback() -> None:
    """What `ip link set lo up` does; a new network has its loopback down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        request = struct.pack("16sH22x", b"lo", 0)
        flags = struct.unpack("16sH22x", fcntl.ioctl(handle, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(handle, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", flags | _IFF_UP))


def settle(site: Site, files: Mapping[str, str]) -> None:
    """Make the home: a project under version control, and the client's own `files`, by their path in the home."""
    site.project.mkdir(parents=True)
    (site.project / "README.md").write_text("# A small project\n\nIt says hello.\n")
    for name, text in files.items():
        path = site.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git = ["git", "-c", "user.name=tests", "-c", "user.email=tests@localhost"]
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message=start"]):
        subprocess.run([*git, *command], cwd=site.project, env=environment(site), check=True)


def environment(site: Site) -> dict[str, str]:
    """All variables that a client sees."""
    return {
        **_QUIET,
        "PATH": search_path(),
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "HOME": str(site.home),
        "SHELL": "/bin/bash",
        "OPENAI_BASE_URL": f"{site.url}/v1",
        "OPENAI_API_KEY": "sk-none",
        "ANTHROPIC_BASE_URL": site.url,
        "ANTHROPIC_API_KEY": "sk-none",
        "MODEL": MODEL,
    }


def drive(site: Site, command: Sequence[str | Path], seconds: float) -> Ended:
    """Run a client to its end, and kill it with all that it started if that takes too long."""
    with subprocess.Popen(
        command,
        cwd=site.project,
        env=environment(site),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
            return Ended(status=process.returncode, output=output)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return Ended(status=None, output=output)
