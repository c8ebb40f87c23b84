"""An agent that is a program: started with its task, told where its model is, and stopped with all that it started.

In a cage (bubblewrap) it writes nowhere but to its working directory, which has the same path for every agent: a fork
that tells the policy where it is tells the same.
"""

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stepwell.errors import EnvironmentFailed
from stepwell.rollout.blackbox import Call

_KEPT: Final = 65_536
"""Bytes of an agent's output that are kept, from its end."""
_SYSTEM: Final = (
    "/usr",
    "/bin",
    "/lib",
    "/lib64",
    "/opt",
    "/etc/ssl",
    "/etc/resolv.conf",
    "/etc/hosts",
    sys.prefix,
    sys.base_prefix,
)
"""What an agent in a cage may read: programs, certificates, names of hosts, and this Python."""
_INSIDE: Final = "/tmp/agent"
"""The working directory of an agent in a cage, as it sees it. Forks that write their path in a prompt do not differ."""
_REPEATABLE: Final = {"PYTHONHASHSEED": "0"}
"""What lets a program do the same again when it is forked, unless the user has set it: the order of Python's sets."""
_GRACE: Final = 2.0
"""Seconds between asking an agent to stop and killing it."""


@dataclass(frozen=True, slots=True)
class CommandRunner:
    """A program: `{task}`, `{model}`, `{url}`, `{key}` and `{folder}` in its command are replaced, quoted for a shell.

    The task is on its standard input too. It runs in a process group of its own, all of which is killed in the end.
    """

    command: str
    bubblewrap: bool = False
    """Let it write to its working directory only, and see neither home folders nor other processes."""
    readable: tuple[Path, ...] = ()
    """What it may read there beside the system's programs."""

    @property
    def name(self) -> str:
        """The program."""
        return Path(shlex.split(self.command)[0]).name

    async def run(self, call: Call) -> tuple[int, str, object]:
        """See `Runner`."""
        folder = _INSIDE if self.bubblewrap else str(call.folder)
        told = {"task": call.task.prompt, "model": call.model, "url": call.url, "key": call.key, "folder": folder}
        line = self.command
        for name, value in told.items():
            line = line.replace("{" + name + "}", shlex.quote(value))
        arguments = [*(_caged(call.folder, self.readable) if self.bubblewrap else ()), "/bin/sh", "-c", line]
        environment = _REPEATABLE | os.environ | call.variables
        try:
            process = await asyncio.create_subprocess_exec(
                *arguments,
                cwd=call.folder,
                env=environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise EnvironmentFailed(f"{arguments[0]} could not be started: {error}") from error
        try:
            output = await _talk(process, call.task.prompt)
            return await process.wait(), output, None
        finally:
            await _stopped(process)


async def _talk(process: asyncio.subprocess.Process, told: str) -> str:
    """Give a process its input and read all that it prints, of which the end is kept."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it need not read
        process.stdin.write(told.encode("utf-8", "surrogatepass"))
        await process.stdin.drain()
    process.stdin.close()
    kept = bytearray()
    while chunk := await process.stdout.read(_KEPT):
        kept += chunk
        del kept[: len(kept) - _KEPT]
    return kept.decode("utf-8", "replace")


async def _stopped(process: asyncio.subprocess.Process) -> None:
    """Its whole group: also what it left running in the background."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        if process.returncode is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GRACE):
                    await process.wait()


def _caged(folder: Path, readable: Sequence[Path]) -> list[str]:
    program = shutil.which("bwrap")
    if program is None:
        raise EnvironmentFailed(
            "bubblewrap is not installed (Debian: apt-get install bubblewrap); or set sandbox: none"
        )
    seen = [
        word for path in (*_SYSTEM, *map(str, readable)) if Path(path).exists() for word in ("--ro-bind", path, path)
    ]
    return [
        *(program, "--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--new-session"),
        *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),  # before what may be inside of them
        *(*seen, "--bind", str(folder), _INSIDE),
        *("--chdir", _INSIDE, "--setenv", "HOME", _INSIDE, "--"),
    ]
