"""The `stepwell` command in a process of its own, which a test may interrupt or kill."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

# None in sys.modules makes an import fail, as if the package were not installed
_PROGRAM = "import sys; sys.modules.update(dict.fromkeys({without})); from stepwell.cli.main import main; main()"
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

    def wait_for(self, text: str, patience: float = _PATIENCE) -> str:
        """The next line that holds `text`."""
        deadline = time.monotonic() + patience
        with suppress(queue.Empty):
            while (line := self._lines.get(timeout=max(0.0, deadline - time.monotonic()))) is not None:
                self.printed.append(line)
                if text in line:
                    return line
            raise AssertionError(f"it ended without printing {text!r}:\n{''.join(self.printed)}")
        raise AssertionError(f"after {patience:g} s it has not printed {text!r}, but:\n{''.join(self.printed)}")

    def interrupt(self, patience: float = _PATIENCE) -> int:
        """Ctrl-C; gives the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(patience)

    def terminate(self) -> None:
        """What a service manager sends; does not wait."""
        self.process.send_signal(signal.SIGTERM)

    def rest(self) -> list[str]:
        """Wait until it ends; gives the lines that were not waited for."""
        self.process.wait(_PATIENCE)
        return list(iter(lambda: self._lines.get(timeout=_PATIENCE), None))

    def kill(self) -> None:
        """No chance to clean anything up."""
        self.process.kill()
        self.process.wait(_PATIENCE)


def _heed_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def stepwell(*arguments: str, without: Sequence[str] = (), env: Mapping[str, str] = {}) -> Iterator[Stepwell]:
    """Start `stepwell` with these arguments, where the packages `without` are missing; it is killed at the end of the
    block if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM.format(without=list(without)), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "COLUMNS": "250", "OMP_NUM_THREADS": "1", **env},
        # A test runner in the background of a script was started to ignore SIGINT, and its children would inherit that.
        preexec_fn=_heed_interrupts,
    )
    try:
        yield Stepwell(process)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
