"""The `stepwell` command in a process of its own, which a test may interrupt or kill."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_COMMAND = (sys.executable, "-c", "from stepwell.cli.main import main; main()")
_PATIENCE = 120  # seconds; a loaded machine needs a while to import torch


@dataclass(frozen=True)
class Finished:
    """A command that ran in the test's own process, through the entry point."""

    code: int
    out: str
    err: str


class Stepwell:
    """A running command whose output is read as it is printed."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.printed: list[str] = []
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def wait_for(self, text: str) -> str:
        """The next line that holds `text`."""
        deadline = time.monotonic() + _PATIENCE
        while (line := self._lines.get(timeout=max(0.0, deadline - time.monotonic()))) is not None:
            self.printed.append(line)
            if text in line:
                return line
        raise AssertionError(f"it ended without printing {text!r}:\n{''.join(self.printed)}")

    def interrupt(self) -> int:
        """Ctrl-C; gives the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(_PATIENCE)

    def kill(self) -> None:
        """No chance to clean anything up."""
        self.process.kill()
        self.process.wait(_PATIENCE)


@contextmanager
def stepwell(*arguments: str) -> Iterator[Stepwell]:
    """Start `stepwell` with these arguments; it is killed at the end of the block if it still runs."""
    process = subprocess.Popen(
        [*_COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "COLUMNS": "250", "OMP_NUM_THREADS": "1"},
    )
    try:
        yield Stepwell(process)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
