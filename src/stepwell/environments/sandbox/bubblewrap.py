"""CPython in namespaces of its own, made by bubblewrap (https://github.com/containers/bubblewrap, LGPL-2.0-or-later, a
program that has to be installed; nothing of it is part of Stepwell).

A program sees a read-only Python, a small folder in memory that it may write to, and `/dev/null` and the like: no file
of the machine beside these, no process, no network. It runs as a user without privileges, under limits for time,
memory, files and processes and a filter of system calls; when its time is over, or it printed too much, everything in
its namespace is killed. Each program runs in a fresh process, so nothing stays from one call to the next.

Not counted by a limit: the kernel's own memory, for a million empty files, say, which is given back at the end.
"""

import asyncio
import contextlib
import json
import math
import os
import random
import shutil
import signal
import subprocess
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import Field

from stepwell.environments.sandbox.base import Problem, Ran, SandboxConfig, sendable
from stepwell.environments.sandbox.installation import find_installation
from stepwell.environments.sandbox.seccomp import system_call_filter
from stepwell.errors import ConfigError, EnvironmentFailed, MissingDependency

_MIB: Final = 1 << 20
_MEMORY_STATUS: Final = 111
_OPEN_FILES: Final = 64
_DYING: Final = 30.0
"""Seconds in which what was killed must be gone."""
_RUNNER: Final = (Path(__file__).parent / "inside.py").read_text(encoding="utf-8")
_NAMESPACES: Final = ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try")
_NOBODY: Final = ("--unshare-user", "--uid", "65534", "--gid", "65534")
_DROPPING: Final = ("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
"""For root, who needs no user namespace, and becomes nobody inside: root's processes are never counted."""
_VARIABLES: Final = {
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",  # sets of texts are printed in the same order every time
    "PYTHONUTF8": "1",
}


class BubblewrapConfig(SandboxConfig):
    """Settings of bubblewrap. Linux only; needs the program `bwrap` and the right to make namespaces."""

    use: Literal["bubblewrap"] = "bubblewrap"
    """Names the sandbox."""
    python: Path | None = None
    """Python that runs the programs with all that is installed for it, of a virtual environment with sympy and numpy,
    say. Null: the one that runs Stepwell, with its standard library only."""
    processes: int = Field(default=8, ge=1, le=1000)
    """Processes and threads that a program may have at once. All of them together may have so many times `memory`."""
    disk: int = Field(default=16, ge=1)
    """MiB that it may write to files, all together; they are in memory, and gone at the end."""

    def build(self) -> "BubblewrapSandbox":
        """See `SandboxConfig`."""
        return BubblewrapSandbox(self)


class BubblewrapSandbox:
    """Runs as many programs at once as there are processors."""

    def __init__(self, config: BubblewrapConfig) -> None:
        """Try it out.

        Raises:
            MissingDependency: bubblewrap is not installed.
            ConfigError: this machine allows no namespaces, or `python` is no Python.
        """
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            raise MissingDependency(
                "the sandbox bubblewrap needs the program bwrap: apt-get install bubblewrap (Linux only); "
                "or use `sandbox: {use: monty}`"
            )
        self._bwrap = bwrap
        self._config = config
        self._installation = find_installation(config.python)
        self._filter = system_call_filter()
        self._turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
        self._turns = weakref.WeakKeyDictionary()
        self._try_out()

    @property
    def about(self) -> str:
        """See `Sandbox`."""
        packages = "with installed packages" if self._installation.packages else "with its standard library"
        return f"Python {packages}; no network. Each call starts afresh: nothing stays defined."

    async def run(self, program: str, state: bytes = b"", *, seed: int = 0) -> Ran:  # noqa: ARG002
        """See `Sandbox`. There is no state. The limits count from the start of the process."""
        loop = asyncio.get_running_loop()
        async with self._turns.setdefault(loop, asyncio.Semaphore(os.cpu_count() or 1)):
            with self._prepared(seed) as prepared:
                return await self._run(prepared, sendable(program).encode())

    async def _run(self, prepared: "_Prepared", program: bytes) -> Ran:
        process = await asyncio.create_subprocess_exec(
            *prepared.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            pass_fds=prepared.descriptors,
            start_new_session=True,
            env={},
        )
        output = _Output(self._config.output)
        try:
            async with asyncio.timeout(self._config.seconds) as limit:
                await _feed(process, program)
                await output.read(process)
        except TimeoutError:
            if not limit.expired():
                raise
        finally:
            await _end(process)
        if output.full:
            return output.result("output", f"stopped after {self._config.output} bytes")
        if limit.expired():
            return output.result("time", f"stopped after {self._config.seconds:g} seconds")
        return output.result(*self._ending(prepared.exit_status(), output))

    def _ending(self, status: int | None, output: "_Output") -> tuple[Problem, str]:
        """What an exit status says; that of bubblewrap itself, if the program never ran."""
        if status is None:
            raise EnvironmentFailed(f"the sandbox bubblewrap did not start: {output.text[-500:]}")
        if status == _MEMORY_STATUS:
            return "memory", f"MemoryError: more than {self._config.memory} MiB"
        if status == 128 + signal.SIGXCPU:
            return "time", f"stopped after {self._config.seconds:g} seconds"
        if status > 128:
            return "killed", f"killed by signal {status - 128}"
        if status:
            return "error", "" if output.text else f"exit status {status}"
        return "", ""

    def _try_out(self) -> None:
        with self._prepared(0) as prepared:
            done = subprocess.run(
                prepared.command,
                input=b"print(6 * 7)",
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=prepared.descriptors,
                env={},
                timeout=60,
                check=False,
            )
            if done.stdout.strip() != b"42":
                raise ConfigError(
                    f"the sandbox bubblewrap does not work here: {done.stdout.decode(errors='replace').strip()}\n"
                    "It needs the right to make namespaces: in a container, run it with user namespaces allowed "
                    "(kernel.unprivileged_userns_clone=1, no seccomp profile against unshare); "
                    "or use `sandbox: {use: monty}`"
                )

    @contextlib.contextmanager
    def _prepared(self, seed: int) -> Iterator["_Prepared"]:
        """The command, with open pipes for what bubblewrap reads and writes beside the program's own."""
        with contextlib.ExitStack() as stack:
            rules, status, told = _filled_pipe(stack, self._filter), *_pipe(stack)
            user = _spare_user() if os.geteuid() == 0 else 0
            command = [*self._command(user, rules, told), self._settings(user, seed)]
            yield _Prepared(tuple(command), (rules, told), status)

    def _command(self, user: int, rules: int, told: int) -> Iterator[str]:
        found = self._installation
        yield from (self._bwrap, "--die-with-parent", "--new-session", *_NAMESPACES, "--hostname", "sandbox")
        yield from _DROPPING if user else _NOBODY
        yield from ("--perms", "1777", "--size", str(self._config.disk * _MIB), "--tmpfs", "/tmp")
        for folder in found.parents:  # bubblewrap itself makes them for root alone
            yield from ("--perms", "0755", "--dir", folder)
        for path, place in (*((path, path) for path in found.shown), *found.libraries):
            yield from ("--ro-bind", path, place)
        yield from ("--dev", "/dev", "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp", "--clearenv")
        for name, value in (_VARIABLES | {"LD_LIBRARY_PATH": os.pathsep.join(found.folders)}).items():
            yield from ("--setenv", name, value)
        yield from ("--seccomp", str(rules), "--json-status-fd", str(told), "--", found.executable)
        yield from ("-P", "-s", "-B", *(() if found.packages else ("-S",)), "-c", _RUNNER)

    def _settings(self, user: int, seed: int) -> str:
        config = self._config
        limits = {
            "RLIMIT_AS": config.memory * _MIB,
            "RLIMIT_CORE": 0,
            "RLIMIT_CPU": math.ceil(config.seconds) + 1,
            "RLIMIT_FSIZE": config.disk * _MIB,
            "RLIMIT_NOFILE": _OPEN_FILES,
            "RLIMIT_NPROC": config.processes,
        }
        return json.dumps({"user": user, "limits": limits, "seed": seed, "memory_status": _MEMORY_STATUS})


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What it takes to start a program."""

    command: tuple[str, ...]
    descriptors: Sequence[int]
    """That the process inherits."""
    status: int
    """Where bubblewrap tells how it went."""

    def exit_status(self) -> int | None:
        """Of the program, once bubblewrap has ended; None if it never began, or was killed with it."""
        os.set_blocking(self.status, False)
        try:
            lines = os.read(self.status, 1 << 16).splitlines()
        except BlockingIOError:
            return None
        codes = [json.loads(line).get("exit-code") for line in lines]
        return codes[-1] if codes else None


class _Output:
    """What a process prints, up to a limit: the rest is never held."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept = bytearray()
        self.full = False

    @property
    def text(self) -> str:
        return self._kept.decode("utf-8", "replace")

    async def read(self, process: asyncio.subprocess.Process) -> None:
        """Read until it ends, or has printed too much."""
        assert process.stdout is not None
        while chunk := await process.stdout.read(1 << 16):
            room = self._most - len(self._kept)
            self._kept += chunk[:room]
            if len(chunk) > room:
                self.full = True
                return
        await process.wait()

    def result(self, problem: Problem, why: str) -> Ran:
        """What to report."""
        return Ran(output=self.text, problem=problem, why=why)


async def _feed(process: asyncio.subprocess.Process, program: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):
        process.stdin.write(program)
        await process.stdin.drain()
        process.stdin.close()


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill it, and with it all of its namespace. What is still in the pipe is thrown away."""
    assert process.stdout is not None
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    try:
        async with asyncio.timeout(_DYING):
            while await process.stdout.read(1 << 16):
                pass
            await process.wait()
    except TimeoutError as error:
        raise EnvironmentFailed(f"a program in the sandbox could not be killed within {_DYING:g} s") from error


def _pipe(stack: contextlib.ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        stack.callback(os.close, end)
    return ends


def _filled_pipe(stack: contextlib.ExitStack, content: bytes) -> int:
    """Where `content`, which is shorter than a pipe is long, can be read."""
    reading, writing = os.pipe()
    stack.callback(os.close, reading)
    os.write(writing, content)
    os.close(writing)
    return reading


def _spare_user() -> int:
    """A user id that hardly anybody has, so that a limit of processes counts those of one sandbox only."""
    ranges = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    first, _, count = max(ranges, key=lambda found: found[2])
    return first + random.SystemRandom().randrange(count // 4, count // 2)
