"""Bubblewrap: where it cannot be, it is refused; what it shows of a Python."""

import sys
from pathlib import Path

import pytest

from stepwell.environments.sandbox import BubblewrapConfig
from stepwell.environments.sandbox.bubblewrap import BubblewrapSandbox
from stepwell.errors import ConfigError, EnvironmentFailed, MissingDependency


def built(**settings: object) -> BubblewrapSandbox:
    try:
        return BubblewrapConfig.model_validate(settings).build()
    except (MissingDependency, ConfigError) as error:
        pytest.skip(str(error))


def fake_bwrap(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program of our own in its place."""
    path = folder / "bwrap"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_without_the_program_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependency, match="apt-get install bubblewrap"):
        BubblewrapConfig().build()


def test_where_namespaces_are_not_allowed_it_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    built()
    fake_bwrap(tmp_path, "echo 'bwrap: No permissions to create new namespace' >&2; exit 1", monkeypatch)
    with pytest.raises(ConfigError, match=r"No permissions to create new namespace(.|\n)*use: monty"):
        BubblewrapConfig().build()


async def test_a_sandbox_that_breaks_later_is_the_environments_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sandbox = built()
    fake_bwrap(tmp_path, "echo 'bwrap: no more' >&2; exit 1", monkeypatch)
    monkeypatch.setattr(sandbox, "_bwrap", str(tmp_path / "bwrap"))
    with pytest.raises(EnvironmentFailed, match="did not start: bwrap: no more"):
        await sandbox.run("print(1)")


async def test_nothing_stays_from_one_call_to_the_next() -> None:
    sandbox = built()
    first = await sandbox.run("x = 1\nopen('file', 'w').write('x')")
    assert (first.problem, first.state) == ("", b"")
    ran = await sandbox.run("import os\nprint(os.listdir('.'))\nprint(x)", first.state)
    assert ran.output.startswith("[]\nTraceback")
    assert "NameError" in ran.output


async def test_installed_packages_are_seen_if_a_python_is_named_and_only_then() -> None:
    program = "import pydantic\nprint(pydantic.__name__)"
    bare = built(memory=1024)
    assert "ModuleNotFoundError" in (await bare.run(program)).output
    assert "standard library" in bare.about


def virtual_environment(folder: Path) -> Path:
    """A Python with one package of our own, `ours`."""
    place = folder / "venv" / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    place.mkdir(parents=True)
    (place / "ours.py").write_text("ANSWER = 42\n")
    python = folder / "venv" / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(Path(sys.executable).resolve())
    home = Path(sys.executable).resolve().parent
    (folder / "venv" / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\n")
    return python


async def test_a_virtual_environment_brings_its_packages(tmp_path: Path) -> None:
    sandbox = built(python=virtual_environment(tmp_path))
    ran = await sandbox.run("import ours\nprint(ours.ANSWER)")
    assert ran.text == "42"
    assert "installed packages" in sandbox.about


def test_what_is_no_python_is_refused(tmp_path: Path) -> None:
    built()
    with pytest.raises(ConfigError, match="cannot be run as Python"):
        BubblewrapConfig(python=tmp_path / "nothing").build()
    with pytest.raises(ConfigError, match="cannot be run as Python"):
        BubblewrapConfig(python=Path("/bin/true")).build()
