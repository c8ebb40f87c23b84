"""What a Python interpreter needs of the machine to run: the only files that a program in a sandbox may read."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stepwell.errors import ConfigError

_ASK: Final = (
    "import json, sys, sysconfig; p = sysconfig.get_paths(); "
    "print(json.dumps([sys.version_info[:2], sys.prefix, sys.base_prefix, p['stdlib'], p['platstdlib'], p['purelib'], "
    "p['platlib'], sysconfig.get_config_var('DESTSHARED') or '']))"
)
_AT_ONCE: Final = 100
"""Libraries that one call of ldd looks at."""


@dataclass(frozen=True, slots=True)
class Installation:
    """An interpreter with the files that it needs."""

    executable: str
    shown: tuple[str, ...]
    """Files and folders; each is seen where it is, read-only."""
    libraries: tuple[tuple[str, str], ...]
    """(file, where it is looked for) of each shared library."""
    packages: bool
    """Whether the packages that are installed for it can be imported."""

    @property
    def parents(self) -> tuple[str, ...]:
        """The folders that everything shown lies in, outer ones first."""
        places = (*self.shown, *(place for _, place in self.libraries))
        found = {str(parent) for place in places for parent in Path(place).parents} - {"/", "/tmp"}
        return tuple(sorted(found - {*self.shown}))

    @property
    def folders(self) -> tuple[str, ...]:
        """Where the libraries are looked for."""
        return tuple(dict.fromkeys(os.path.dirname(place) for _, place in self.libraries))


def find_installation(python: Path | None) -> Installation:
    """What `python` needs, with its packages; by default the interpreter that runs this, with no packages.

    Raises:
        ConfigError: it is no Python of 3.11 or later.
    """
    executable = str(python.absolute() if python else Path(sys.executable).resolve())
    version, prefix, base, stdlib, platstdlib, purelib, platlib, extensions = _asked(executable)
    if tuple(version) < (3, 11):
        raise ConfigError(f"{executable} is Python {version[0]}.{version[1]}; the sandbox needs 3.11 or later")
    folders = [stdlib, platstdlib]
    if python:
        folders += [prefix] if prefix != base else [purelib, platlib]
    files = [executable, os.path.realpath(executable), *_links(executable)]
    shown = _outermost([path for path in [*folders, *files] if os.path.exists(path)])
    found = [os.path.realpath(executable), *map(str, Path(extensions).glob("*.so*") if extensions else ())]
    found += [str(path) for folder in folders[2:] for path in Path(folder).rglob("*.so*") if path.is_file()]
    return Installation(executable, shown, _libraries(found, shown), packages=python is not None)


def _outermost(paths: list[str]) -> tuple[str, ...]:
    """Those that do not lie in another one."""
    return tuple(path for path in dict.fromkeys(paths) if not {str(parent) for parent in Path(path).parents} & {*paths})


def _asked(executable: str) -> tuple[tuple[int, int], str, str, str, str, str, str, str]:
    try:
        done = subprocess.run([executable, "-I", "-c", _ASK], capture_output=True, text=True, timeout=60, check=True)
        version, *paths = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise ConfigError(f"{executable} cannot be run as Python: {error}") from error
    return (tuple(version), *paths)


def _links(path: str) -> list[str]:
    """What a chain of symbolic links passes through."""
    passed = []
    while os.path.islink(path):
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
        passed.append(path)
    return passed


def _libraries(binaries: list[str], shown: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """What the dynamic linker finds for the binaries, outside of what is shown anyway."""
    places: dict[str, None] = {}
    for start in range(0, len(binaries), _AT_ONCE):
        places.update(dict.fromkeys(_linked(binaries[start : start + _AT_ONCE])))
    inside = tuple(f"{folder}{os.sep}" for folder in shown)
    return tuple((os.path.realpath(place), place) for place in places if not place.startswith(inside))


def _linked(binaries: list[str]) -> list[str]:
    try:
        done = subprocess.run(["ldd", *binaries], capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"the sandbox bubblewrap needs the program ldd: {error}") from error
    # A line is `name => /place (address)`, or `/place (address)` for the loader itself.
    words = [line.split("=>")[-1].split() for line in done.stdout.splitlines() if line.startswith("\t")]
    return [word[0] for word in words if word and word[0].startswith("/") and os.path.exists(word[0])]
