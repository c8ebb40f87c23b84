"""Runs in the sandbox: gives up what is left of privileges, sets limits, then runs the program from standard input.

Its source is handed to the interpreter as text, so it imports nothing of Stepwell. `sys.argv[1]` is JSON: `user` (0: as
it is), `limits` (numbers by the names of the module `resource`), `seed`, `memory_status` (exit status that says that
there was no memory).
"""

import json
import linecache
import os
import random
import resource
import sys
import traceback
from types import ModuleType, TracebackType

_NAME = "<program>"


def main() -> None:
    """See the module."""
    settings = json.loads(sys.argv[1])
    os.closerange(3, 1024)
    if settings["user"]:
        os.setgroups([])
        os.setresgid(*[settings["user"]] * 3)
        os.setresuid(*[settings["user"]] * 3)
    for name, most in settings["limits"].items():
        resource.setrlimit(getattr(resource, name), (most, most))
    program = sys.stdin.buffer.read().decode("utf-8", "replace")
    os.close(0)
    os.open(os.devnull, os.O_RDONLY)  # takes the place of standard input
    sys.argv = [_NAME]
    random.seed(settings["seed"])
    try:
        run(program)
    except MemoryError as error:
        shown(MemoryError, error, error.__traceback__)
        sys.stdout.flush()
        os._exit(settings["memory_status"])


def run(program: str) -> None:
    """Run it; what it raises is shown without the lines of this module."""
    linecache.cache[_NAME] = (len(program), None, program.splitlines(keepends=True), _NAME)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    sys.excepthook = shown
    module = sys.modules["__main__"] = ModuleType("__main__")
    exec(compile(program, _NAME, "exec"), module.__dict__)


def shown(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print what was raised."""
    while trace is not None and trace.tb_frame.f_code.co_filename != _NAME:
        trace = trace.tb_next
    traceback.print_exception(kind, error, trace)


if __name__ == "__main__":
    main()
