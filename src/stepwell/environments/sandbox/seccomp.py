"""A filter of system calls for programs in namespaces: what those leave open to an unprivileged process.

It refuses memory that no limit of a process counts (System V shared memory, files in memory), new namespaces and
mounts (in which a program would be root again), and interfaces that it can have no honest use for. All the rest is
allowed: the namespaces and limits hold by themselves. Written from the kernel's documentation of seccomp.
"""

import errno
import platform
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from stepwell.errors import ConfigError

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""Instructions of the filter machine: load a word; jump if it equals, is at least, has a bit of; return."""
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
"""Where these lie in what the filter sees."""
_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000
_NEW_NAMESPACES: Final = 0x7E020000
"""Flags of `clone` that make one."""
_X32: Final = 0x40000000
"""System calls of x86-64's other numbering begin here."""

_SHARED: Final = {
    "pidfd_getfd": 438, "memfd_secret": 447, "io_uring_setup": 425, "open_tree": 428, "move_mount": 429, "fsopen": 430,
    "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442,
}  # fmt: skip


@dataclass(frozen=True)
class _Machine:
    """A kind of processor, and the numbers of system calls there."""

    architecture: int
    clone: int
    clone3: int
    refused: Mapping[str, int]


_MACHINES: Final = {
    "x86_64": _Machine(0xC000003E, 56, 435, {
        "shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240, "ptrace": 101, "syslog": 103, "pivot_root": 155,
        "mount": 165, "umount2": 166, "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272,
        "perf_event_open": 298, "open_by_handle_at": 304, "setns": 308, "process_vm_readv": 310,
        "process_vm_writev": 311, "memfd_create": 319, "bpf": 321, "userfaultfd": 323,
    }),
    "aarch64": _Machine(0xC00000B7, 220, 435, {
        "umount2": 39, "mount": 40, "pivot_root": 41, "unshare": 97, "syslog": 116, "ptrace": 117, "mq_open": 180,
        "msgget": 186, "semget": 190, "shmget": 194, "add_key": 217, "request_key": 218, "keyctl": 219,
        "perf_event_open": 241, "open_by_handle_at": 265, "setns": 268, "process_vm_readv": 270,
        "process_vm_writev": 271, "memfd_create": 279, "bpf": 280, "userfaultfd": 282,
    }),
}  # fmt: skip


def system_call_filter(machine: str = "") -> bytes:
    """The filter for a kind of processor, as `bwrap --seccomp` reads it; for that of this machine by default.

    Raises:
        ConfigError: it is none that the filter is written for.
    """
    name = machine or platform.machine()
    known = _MACHINES.get(name)
    if known is None:
        raise ConfigError(
            f"the sandbox bubblewrap has no system call filter for {name}, only for {', '.join(_MACHINES)}; "
            "use `sandbox: {use: monty}`"
        )
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, known.architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _FAIL | errno.ENOSYS),
        (_EQUAL, 0, 1, known.clone3),  # its flags cannot be seen; C libraries then use clone
        (_RETURN, 0, 0, _FAIL | errno.ENOSYS),
        *_refused([*known.refused.values(), *_SHARED.values()]),
        (_EQUAL, 0, 3, known.clone),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_ANY_BIT, 0, 1, _NEW_NAMESPACES),
        (_RETURN, 0, 0, _FAIL | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def _refused(numbers: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """For each: if it is the one, return; else go on."""
    end = (_RETURN, 0, 0, _FAIL | errno.EPERM)
    return [line for number in numbers for line in ((_EQUAL, 0, 1, number), end)]
