"""Whatever a program does, it ends in a result that says how it went, and the sandbox goes on."""

import asyncio
import socket
import time
from pathlib import Path

import pytest

from stepwell.environments.sandbox import BubblewrapConfig, MontyConfig
from stepwell.environments.sandbox.base import Sandbox, SandboxConfig
from stepwell.errors import ConfigError, MissingDependency

_KINDS: dict[str, type[SandboxConfig]] = {"monty": MontyConfig, "bubblewrap": BubblewrapConfig}


def made(kind: str, **limits: object) -> Sandbox:
    try:
        return _KINDS[kind].model_validate(limits).build()
    except (MissingDependency, ConfigError) as error:
        pytest.skip(str(error))


@pytest.fixture(params=_KINDS, scope="module")
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def sandbox(kind: str) -> Sandbox:
    return made(kind, seconds=20, memory=128, output=1000)


@pytest.fixture(scope="module")
def hasty(kind: str) -> Sandbox:
    return made(kind, seconds=1, memory=128, output=1000)


@pytest.fixture(scope="module")
def cpython() -> Sandbox:
    return made("bubblewrap", seconds=20, memory=128, output=1000)


@pytest.fixture(scope="module")
def hasty_cpython() -> Sandbox:
    return made("bubblewrap", seconds=1, memory=128, output=1000)


async def usable(sandbox: Sandbox) -> bool:
    return (await sandbox.run("print(6 * 7)")).output == "42\n"


async def test_a_program_that_prints_is_heard_and_one_that_prints_nothing_is_told_so(sandbox: Sandbox) -> None:
    ran = await sandbox.run("print('one')\nprint('two')")
    assert (ran.output, ran.problem, ran.text) == ("one\ntwo\n", "", "one\ntwo")
    assert (await sandbox.run("6 * 7")).text == "[nothing was printed]"


async def test_an_exception_is_shown_with_its_line(sandbox: Sandbox) -> None:
    ran = await sandbox.run("print('before')\ndef f():\n    return 1 / 0\nf()")
    assert ran.problem == "error"
    assert ran.text.startswith("before\nTraceback")
    assert "line 3" in ran.text
    assert ran.text.endswith("ZeroDivisionError: division by zero")


@pytest.mark.parametrize("program", ["x = = 1", "(" * 300, "x = '\0'\0", "\ud800"])
async def test_what_is_no_program_is_an_error(sandbox: Sandbox, program: str) -> None:
    ran = await sandbox.run(program)
    assert ran.problem in ("error", "memory")
    assert "Error" in ran.text


async def test_an_endless_loop_is_stopped(hasty: Sandbox) -> None:
    ran = await hasty.run("print('begun')\nwhile True: pass")
    assert (ran.problem, ran.why) == ("time", "stopped after 1 seconds")
    assert await usable(hasty)


async def test_a_loop_that_catches_everything_is_stopped(hasty: Sandbox) -> None:
    ran = await hasty.run("while True:\n    try:\n        while True: pass\n    except BaseException: pass")
    assert ran.problem == "time"


async def test_a_print_of_a_hundred_megabytes_is_cut_and_stopped(sandbox: Sandbox) -> None:
    ran = await sandbox.run("for _ in range(100_000): print('x' * 999)")
    assert (ran.problem, ran.output) == ("output", "x" * 999 + "\n")
    assert ran.why.startswith("stopped after 1000 ")
    assert await usable(sandbox)


@pytest.mark.parametrize(
    "program",
    ["a = [0] * 10**9", "a = 'x'\nwhile True: a = a + a", "a = []\nwhile True: a.append('x' * 10**6 + str(len(a)))"],
)
async def test_a_memory_hog_is_refused_memory(sandbox: Sandbox, program: str) -> None:
    ran = await sandbox.run(program)
    assert ran.problem == "memory"
    assert "MemoryError: more than 128 MiB" in ran.text
    assert await usable(sandbox)


async def test_endless_recursion_is_an_error(sandbox: Sandbox) -> None:
    ran = await sandbox.run("def f(): return f()\nf()")
    assert (ran.problem, "RecursionError" in ran.output) == ("error", True)


@pytest.mark.parametrize("path", ["/etc/passwd", "/etc/hostname", "/proc/1/environ", __file__, str(Path.home())])
async def test_nothing_of_the_machine_can_be_read(sandbox: Sandbox, path: str) -> None:
    ran = await sandbox.run(f"print(open({path!r}).read())")
    assert ran.problem == "error"
    assert any(error in ran.output for error in ("FileNotFoundError", "PermissionError", "IsADirectoryError"))


async def test_the_environment_is_not_seen(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_TEST_SECRET", "hidden")
    ran = await sandbox.run("import os\nprint(os.environ)")
    assert "hidden" not in ran.text


async def test_random_numbers_repeat_by_seed(sandbox: Sandbox) -> None:
    program = "import random\nprint(random.random(), {'a', 'b', 'c'})"
    first, again, other = [(await sandbox.run(program, seed=seed)).output for seed in (1, 1, 2)]
    assert first == again != other


async def test_many_programs_run_at_once_and_none_sees_another(sandbox: Sandbox) -> None:
    ran = await asyncio.gather(*(sandbox.run(f"x = {n}\nprint(x)") for n in range(20)))
    assert [one.output for one in ran] == [f"{n}\n" for n in range(20)]


async def test_a_program_that_is_given_up_is_killed(cpython: Sandbox) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await cpython.run("while True: pass")
    assert await usable(cpython)


async def test_a_fork_bomb_runs_out_of_processes(hasty_cpython: Sandbox) -> None:
    ran = await hasty_cpython.run(
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError as error:\n        reason = error"
    )
    assert ran.problem == "time"
    assert await usable(hasty_cpython)


async def test_processes_are_counted(cpython: Sandbox) -> None:
    ran = await cpython.run(
        "import os, time\nmade = 0\ntry:\n    while True:\n        if os.fork() == 0:\n            time.sleep(60)\n"
        "            os._exit(0)\n        made += 1\nexcept OSError as error:\n    print(made, type(error).__name__)"
    )
    assert ran.output == "7 BlockingIOError\n"


async def test_there_is_no_network(cpython: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        ran = await cpython.run(f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 5)")
    assert ran.problem == "error"
    assert "OSError" in ran.output or "ConnectionRefusedError" in ran.output


async def test_bytes_that_are_no_utf8_are_replaced(cpython: Sandbox) -> None:
    ran = await cpython.run("import sys\nsys.stdout.buffer.write(b'a\\xff\\xfe\\xc3 b')")
    assert (ran.problem, ran.output) == ("", "a\ufffd\ufffd\ufffd b")


async def test_the_disk_is_small(cpython: Sandbox) -> None:
    ran = await cpython.run("for n in range(9): open(f'file{n}', 'wb').write(b'x' * 8_000_000)")
    assert ran.problem == "error"
    assert "No space left on device" in ran.output


async def test_no_file_grows_beyond_the_limit(cpython: Sandbox) -> None:
    ran = await cpython.run("with open('file', 'wb') as file:\n    while True: file.write(b'x' * 1_000_000)")
    assert ran.problem == "error"
    assert "File too large" in ran.output or "No space left on device" in ran.output


@pytest.mark.parametrize("folder", ["/", "/dev", "/dev/shm"])
async def test_only_one_folder_can_be_written_to(cpython: Sandbox, folder: str) -> None:
    ran = await cpython.run(f"import os\nopen(os.path.join({folder!r}, 'file'), 'w')")
    assert ran.problem == "error"
    assert "Read-only" in ran.output or "Permission" in ran.output


async def test_zombies_and_what_runs_on_in_the_background_are_gone_with_the_program(cpython: Sandbox) -> None:
    start = time.monotonic()
    ran = await cpython.run(
        "import os, time\nfor _ in range(3):\n    if os.fork() == 0: os._exit(0)\n"
        "if os.fork() == 0:\n    os.setsid()\n    time.sleep(15)\n    print('still here')\n    os._exit(0)\n"
        "print('left')"
    )
    assert (ran.problem, ran.output) == ("", "left\n")
    assert time.monotonic() - start < 15


async def test_a_program_that_closes_its_output_is_waited_for_and_stopped(hasty_cpython: Sandbox) -> None:
    ran = await hasty_cpython.run("import os, time\nos.close(1)\nos.close(2)\ntime.sleep(60)")
    assert ran.problem == "time"


async def test_a_crash_and_an_exit_status_are_told(cpython: Sandbox) -> None:
    crash = await cpython.run("import ctypes\nctypes.string_at(0)")
    assert (crash.problem, crash.text) == ("killed", "[killed by signal 11]")
    left = await cpython.run("import sys\nsys.exit(3)")
    assert (left.problem, left.text) == ("error", "[exit status 3]")


async def test_memory_that_no_limit_counts_and_new_namespaces_are_refused(cpython: Sandbox) -> None:
    ran = await cpython.run(
        "import ctypes\nlib = ctypes.CDLL(None, use_errno=True)\n"
        "print(lib.unshare(0x10000000), lib.memfd_create(b'a', 0), lib.shmget(0, 4096, 0o1600), lib.ptrace(0, 0, 0, 0))"
    )
    assert ran.output == "-1 -1 -1 -1\n"


async def test_no_open_file_of_the_sandbox_reaches_the_program(cpython: Sandbox) -> None:
    ran = await cpython.run(
        "import os\nfor n in range(3, 60):\n    try:\n        os.fstat(n)\n        print(n)\n    except OSError: pass"
    )
    assert ran.text == "[nothing was printed]"


async def test_a_subprocess_is_in_the_same_sandbox(cpython: Sandbox) -> None:
    ran = await cpython.run(
        "import subprocess, sys\ninner = 'print(5); open(\"/etc/passwd\")'\n"
        "print(subprocess.run([sys.executable, '-c', inner], capture_output=True, text=True).stdout)"
    )
    assert ran.output == "5\n\n"


async def test_there_is_no_input(cpython: Sandbox) -> None:
    assert "EOFError" in (await cpython.run("input()")).output
