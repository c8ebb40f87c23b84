"""Small computations in Monty, an interpreter of a part of Python that knows no operating system.

Wraps `pydantic-monty` (https://github.com/pydantic/monty, MIT), which runs programs in worker processes of its own
without files, network, environment or clock. It has no third-party packages and only a part of the standard library
(`math`, `re`, `json`, `datetime`, `itertools`, `decimal`, …); a call takes a few milliseconds. Names that a program
defines are there for the next one: the interpreter's state is taken out after each call and put in before the next.
"""

import asyncio
import datetime
import threading
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from stepwell.environments.sandbox.base import Problem, Ran, SandboxConfig, sendable
from stepwell.errors import EnvironmentFailed, MissingDependency

if TYPE_CHECKING:
    import pydantic_monty

_Failed: TypeAlias = tuple[Problem, str]
"""How a program went wrong, and what to say of it."""
_MIB: Final = 1 << 20
_LARGEST_STATE: Final = 4 * _MIB
_NOON: Final = datetime.datetime(2025, 1, 1, 12, tzinfo=datetime.UTC)
"""The time that it always is: a program that asks for it does the same again."""
_PATIENCE: Final = 300.0
"""Seconds that a program may wait for a worker."""
_GRACE: Final = 2.0
"""Seconds after which a worker that does not stop by itself is killed."""
_ALONE: Final = "\n\nNone"
"""Ends each program, so that no value of it has to be brought out: only what is printed counts."""


class MontyConfig(SandboxConfig):
    """Settings of Monty. Needs the extra `sandbox`."""

    use: Literal["monty"] = "monty"
    """Names the sandbox."""

    def build(self) -> "MontySandbox":
        """See `SandboxConfig`."""
        return MontySandbox(self)


class MontySandbox:
    """Runs programs in as many workers as there are processors."""

    about: Final = (
        "Python with math, re, json, datetime, itertools, decimal and the like; no files, no network, no other "
        "packages. Names stay defined from one call to the next."
    )

    def __init__(self, config: MontyConfig) -> None:
        """Raises MissingDependency without `pydantic-monty`."""
        try:
            import pydantic_monty  # noqa: PLC0415  # optional: only this sandbox needs it
        except ImportError as error:
            raise MissingDependency("the sandbox monty needs: pip install 'stepwell[sandbox]'") from error
        self._monty = pydantic_monty
        self._config = config
        self._starting = threading.Lock()
        self._pool: pydantic_monty.Monty | None = None

    async def run(self, program: str, state: bytes = b"", *, seed: int = 0) -> Ran:
        """See `Sandbox`. A program that was stopped leaves the state as it was before it."""
        return await asyncio.to_thread(self._run, sendable(program), state, seed)

    def _run(self, program: str, state: bytes, seed: int) -> Ran:
        printed = _Printed(self._config.output)
        try:
            with self._workers().checkout(limits=self._limits(), os_policy=_policy(seed)) as session:
                if state:
                    session.load_session(state)
                failed = self._feed(session, program, printed)
                if printed.full or (failed is not None and failed[0] != "error"):
                    return printed.result(failed, state)
                return self._kept(printed, failed, session.dump(), state)
        except self._monty.MontyError as error:  # the worker died of it
            return printed.result(self._understood(error), state)
        except (TimeoutError, OSError, RuntimeError) as error:
            raise EnvironmentFailed(f"the sandbox monty failed: {type(error).__name__}: {error}") from error

    def _kept(self, printed: "_Printed", failed: _Failed | None, new: bytes, old: bytes) -> Ran:
        """The result with the new state, unless that is too large to be kept for every turn of every episode."""
        if len(new) <= _LARGEST_STATE:
            return printed.result(failed, new)
        why = f"the variables take more than {_LARGEST_STATE // _MIB} MiB: what this program defined is forgotten"
        return printed.result(failed or ("memory", why), old)

    def _feed(self, session: "pydantic_monty.MontySession", program: str, printed: "_Printed") -> _Failed | None:
        try:
            session.feed_run(program + _ALONE, print_callback=printed.take)
        except (self._monty.MontyCrashedError, self._monty.MontySyntaxError, self._monty.MontyRuntimeError) as error:
            return self._understood(error)
        return None

    def _understood(self, error: Any) -> _Failed:
        """The problem, and what to say of it."""
        if isinstance(error, self._monty.MontyCrashedError):
            return ("time", self._too_slow()) if error.timed_out else ("killed", "the interpreter died of it")
        if isinstance(error, self._monty.MontySyntaxError):
            return "error", f"SyntaxError: {error}"
        inner = error.exception()
        if isinstance(inner, TimeoutError) and not error.traceback():
            return "time", self._too_slow()
        if isinstance(inner, MemoryError):
            return "memory", f"MemoryError: more than {self._config.memory} MiB"
        return "error", error.display()

    def _too_slow(self) -> str:
        return f"stopped after {self._config.seconds:g} seconds"

    def _limits(self) -> "pydantic_monty.ResourceLimits":
        return {"max_feed_duration_secs": self._config.seconds, "max_memory": self._config.memory * _MIB}

    def _workers(self) -> "pydantic_monty.Monty":
        """The workers, started when they are first needed; they end with this process."""
        with self._starting:
            if self._pool is None:
                pool = self._monty.Monty(checkout_timeout=_PATIENCE, feed_duration_limit_grace=_GRACE)
                try:
                    self._pool = pool.__enter__()
                except (OSError, RuntimeError, self._monty.MontyError) as error:
                    raise EnvironmentFailed(f"the sandbox monty does not start: {error}") from error
            return self._pool


def _policy(seed: int) -> "pydantic_monty.OSPolicy":
    return {"datetime": _NOON, "sleep": "zero", "random_start": {"seed": seed}}


class _Full(Exception):
    """Tells a worker to stop printing."""


class _Printed:
    """What a program printed, up to a limit."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._parts: list[str] = []
        self._room = most
        self.full = False

    def take(self, stream: str, text: str) -> None:  # noqa: ARG002
        """Keep some more."""
        self._parts.append(text[: self._room])
        self._room -= len(self._parts[-1])
        if len(text) > len(self._parts[-1]):
            self.full = True
            raise _Full

    def result(self, failed: _Failed | None, state: bytes) -> Ran:
        """What to report."""
        output = "".join(self._parts)
        if self.full:
            return Ran(output=output, problem="output", why=f"stopped after {self._most} characters", state=state)
        problem, why = failed or ("", "")
        if problem == "error":  # a traceback belongs to what is printed
            joined = "\n".join(filter(None, [output.rstrip("\n"), why]))
            return Ran(output=joined, problem=problem, state=state)
        return Ran(output=output, problem=problem, why=why, state=state)
