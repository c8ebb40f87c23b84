"""The filter of system calls: each instruction is looked at by a machine of our own."""

import errno
import struct

import pytest

from stepwell.environments.sandbox.seccomp import system_call_filter
from stepwell.errors import ConfigError

ALLOW, KILL = 0x7FFF0000, 0x80000000
X86, ARM = 0xC000003E, 0xC00000B7


def refused(code: int) -> int:
    return 0x00050000 | code


def verdict(program: bytes, architecture: int, number: int, argument: int = 0) -> int:
    """What the filter returns for a system call."""
    words = {0: number, 4: architecture, 16: argument}
    lines = list(struct.iter_unpack("=HBBI", program))
    place = loaded = 0
    while True:
        code, yes, no, value = lines[place]
        place += 1
        if code == 0x06:
            return value
        if code == 0x20:
            loaded = words[value]
        else:
            holds = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}[code]
            place += yes if holds else no


@pytest.mark.parametrize(("machine", "architecture", "clone"), [("x86_64", X86, 56), ("aarch64", ARM, 220)])
def test_threads_and_processes_may_be_made_but_no_namespaces(machine: str, architecture: int, clone: int) -> None:
    rules = system_call_filter(machine)
    assert verdict(rules, architecture, clone, 0x003D0F00) == ALLOW  # as a thread is made
    assert verdict(rules, architecture, clone, 17) == ALLOW  # as a process is made
    for flag in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert verdict(rules, architecture, clone, flag | 17) == refused(errno.EPERM)
    assert verdict(rules, architecture, 435) == refused(errno.ENOSYS)


@pytest.mark.parametrize(
    ("machine", "architecture", "numbers"),
    [("x86_64", X86, (29, 101, 165, 272, 319, 425, 447)), ("aarch64", ARM, (40, 97, 117, 194, 279, 425, 447))],
)
def test_uncounted_memory_mounts_and_tracing_are_refused(
    machine: str, architecture: int, numbers: tuple[int, ...]
) -> None:
    rules = system_call_filter(machine)
    assert {verdict(rules, architecture, number) for number in numbers} == {refused(errno.EPERM)}


def test_ordinary_calls_are_allowed_and_other_numberings_are_not() -> None:
    rules = system_call_filter("x86_64")
    assert {verdict(rules, X86, number) for number in (0, 1, 2, 9, 57, 59, 231)} == {ALLOW}
    assert verdict(rules, X86, 0x40000000 + 1) == refused(errno.ENOSYS)
    assert verdict(rules, 0x40000003, 1) == KILL


def test_an_unknown_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match="no system call filter for z80"):
        system_call_filter("z80")
