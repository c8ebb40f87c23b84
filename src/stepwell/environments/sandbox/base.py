"""What a sandbox is: a place where a program that a model wrote can do no harm, whatever it does.

A sandbox holds no episode. What a program leaves behind for the next one is in `Ran.state`, a value that the episode
keeps and hands in again. So a fork copies nothing, nothing has to be closed, and a thousand episodes share a few
processes.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import Field

from stepwell.config import Config

Problem = Literal["", "error", "time", "memory", "output", "killed"]
"""How a program ended: well; by an exception or an exit status; because it took too long, wanted too much memory,
printed too much; or because something else killed it."""

_NOTHING = "[nothing was printed]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What running a program brought."""

    output: str = ""
    """What it printed, standard error too, at most as much as the limit; bytes that are no UTF-8 are replaced."""
    problem: Problem = ""
    why: str = ""
    """The problem in a short sentence; empty where the output says it."""
    state: bytes = b""
    """What the next program of the episode starts from. Unchanged where the program was stopped."""

    @property
    def text(self) -> str:
        """All of it, as the model is shown it."""
        shown = [self.output.rstrip("\n"), f"[{self.why}]" if self.why else ""]
        return "\n".join(filter(None, shown)) or _NOTHING


class Sandbox(Protocol):
    """Runs programs, many at once."""

    @property
    def about(self) -> str:
        """What a program may use, in a sentence for the model."""
        ...

    async def run(self, program: str, state: bytes = b"", *, seed: int = 0) -> Ran:
        """What the program prints. Whatever it does is in the result, within a time that the settings bound.

        Args:
            program: Python source.
            state: What an earlier run of the same sandbox gave, or nothing.
            seed: Of the random numbers that the program may draw.

        Raises:
            EnvironmentFailed: the sandbox itself failed, through no fault of the program.
        """
        ...


class SandboxConfig(Config):
    """Limits of every program."""

    seconds: float = Field(default=5.0, gt=0, le=3600)
    """That a program may take."""
    memory: int = Field(default=256, ge=16)
    """MiB that a process of it may have."""
    output: int = Field(default=10_000, ge=1)
    """Characters (with `bubblewrap`, bytes) that it may print; it is stopped where it prints more."""

    def build(self) -> Sandbox:
        """The sandbox. Raises MissingDependency for what is not installed, ConfigError for what cannot be here."""
        raise NotImplementedError(f"{type(self).__name__} needs a build()")


def sendable(program: str) -> str:
    """The program with what no file could hold (half a character) replaced."""
    return program.encode("utf-8", "replace").decode("utf-8")
