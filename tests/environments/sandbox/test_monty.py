"""Monty: what a program leaves for the next one."""

import sys

import pytest

from stepwell.environments.sandbox import MontyConfig
from stepwell.environments.sandbox.monty import MontySandbox
from stepwell.errors import MissingDependency

pytest.importorskip("pydantic_monty", reason="the extra `sandbox` is not installed")


@pytest.fixture(scope="module")
def sandbox() -> MontySandbox:
    return MontyConfig(seconds=1, memory=64, output=100).build()


async def test_names_stay_defined_in_the_state_and_only_there(sandbox: MontySandbox) -> None:
    first = await sandbox.run("x = [1, 2]\ndef double(n): return 2 * n")
    assert (await sandbox.run("print(double(x[1]))", first.state)).output == "4\n"
    assert "NameError" in (await sandbox.run("print(x)")).output


async def test_a_state_can_be_gone_on_from_twice(sandbox: MontySandbox) -> None:
    origin = (await sandbox.run("x = [1]")).state
    left = (await sandbox.run("x.append(2)", origin)).state
    right = (await sandbox.run("x.append(3)", origin)).state
    shown = [(await sandbox.run("print(x)", state)).output for state in (origin, left, right)]
    assert shown == ["[1]\n", "[1, 2]\n", "[1, 3]\n"]


async def test_an_exception_keeps_what_was_done_before_it(sandbox: MontySandbox) -> None:
    state = (await sandbox.run("x = 5\n1 / 0")).state
    assert (await sandbox.run("print(x)", state)).output == "5\n"


@pytest.mark.parametrize(
    "program", ["x = 2\nwhile True: pass", "x = 2\nwhile True: print(x)", "x = 2\ny = 'y' * 10**9"]
)
async def test_a_program_that_was_stopped_leaves_the_state_as_it_was(sandbox: MontySandbox, program: str) -> None:
    before = (await sandbox.run("x = 1")).state
    ran = await sandbox.run(program, before)
    assert ran.problem in ("time", "output", "memory")
    assert ran.state == before


async def test_variables_that_are_too_large_to_keep_are_forgotten(sandbox: MontySandbox) -> None:
    ran = await sandbox.run("x = 'x' * 5_000_000\nprint('made')")
    assert (ran.problem, ran.state) == ("memory", b"")
    assert ran.text == "made\n[the variables take more than 4 MiB: what this program defined is forgotten]"


async def test_the_clock_stands_still_and_sleep_takes_no_time(sandbox: MontySandbox) -> None:
    ran = await sandbox.run("import time\nbefore = time.time()\ntime.sleep(100)\nprint(time.time() == before, before)")
    assert ran.output == "True 1735732800.0\n"


async def test_random_numbers_go_on_from_one_call_to_the_next(sandbox: MontySandbox) -> None:
    draw = "import random\nprint(random.random())"
    first = await sandbox.run(draw, seed=3)
    second = await sandbox.run(draw, first.state, seed=3)
    assert first.output != second.output
    assert (await sandbox.run(draw, first.state, seed=3)).output == second.output


async def test_a_time_out_within_a_function_is_told_from_one_that_a_program_raises(sandbox: MontySandbox) -> None:
    slow = await sandbox.run("def f():\n    while True: pass\nf()")
    assert (slow.problem, slow.text) == ("time", "[stopped after 1 seconds]")
    raised = await sandbox.run("raise TimeoutError('mine')")
    assert (raised.problem, raised.text.endswith("TimeoutError: mine")) == ("error", True)


def test_without_the_package_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic_monty", None)
    with pytest.raises(MissingDependency, match=r"pip install 'stepwell\[sandbox\]'"):
        MontyConfig().build()
