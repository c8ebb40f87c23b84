"""`stepwell doctor`: what is there, what is not, what for, and how to get it."""

import json
import socket
import tomllib
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from stepwell.cli import examination
from stepwell.cli.examination import Finding, machine, places, programs
from stepwell.cli.packages import EXTRAS, packages
from tests.cli.processes import Finished

Command = Callable[..., Finished]
NEEDED = ("numpy>=1.26", "uvloop>=0.20; platform_system != 'Windows'", "torch>=2.6; extra == 'train'")


def installed(versions: Mapping[str, str]) -> Callable[[str], str]:
    def version(name: str) -> str:
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    return version


def found(**versions: str) -> dict[str, Finding]:
    return {finding.what: finding for finding in packages(NEEDED, installed(versions))}


def test_packages_whose_versions_fit_are_well() -> None:
    told = found(numpy="2.0", uvloop="0.21", torch="2.7.0+cpu")
    assert told["stepwell"].state == told["stepwell[train]"].state == "ok"
    assert told["stepwell"].found == "numpy 2.0, uvloop 0.21"
    assert told["stepwell[train]"].found == "torch 2.7.0+cpu"


def test_an_extra_that_is_not_there_is_missing_with_its_purpose_and_how_to_get_it() -> None:
    told = found(numpy="2.0", uvloop="0.21")["stepwell[train]"]
    assert (told.state, told.found, told.remedy) == ("missing", "no torch", "pip install 'stepwell[train]'")
    assert "training" in told.purpose


def test_a_version_out_of_range_is_wrong_and_the_remedy_names_the_range() -> None:
    told = found(numpy="1.20", uvloop="0.21", torch="2.5.1")
    assert (told["stepwell"].state, told["stepwell"].remedy) == ("wrong", "pip install 'numpy>=1.26'")
    assert (told["stepwell[train]"].state, told["stepwell[train]"].remedy) == ("wrong", "pip install 'torch>=2.6'")


def test_engines_beside_stepwell_are_looked_for_with_the_version_that_they_must_have() -> None:
    assert found()["vllm"].state == "missing"
    assert found(vllm="0.9.0")["vllm"].state == "wrong"
    assert found(vllm="0.11.0")["vllm"].state == "ok"


def test_every_extra_has_a_purpose() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert set(EXTRAS) == set(project["optional-dependencies"]) - {"dev"}


def test_a_port_that_is_taken_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(examination, "_GATEWAY_PORT", taken.getsockname()[1])
        first = next(places())
    assert (first.found, first.state, "--port" in first.remedy) == ("taken", "wrong", True)


def test_gpus_are_told_as_their_driver_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771 MiB, 143000 MiB, 570.1'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (gpu,) = [finding.found for finding in machine() if finding.what == "GPU"]
    assert gpu == "NVIDIA H200, 143771 MiB, 143000 MiB free, driver 570.1"


def test_programs_that_are_not_there_are_missing_with_what_they_are_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("STEPWELL_POOL", "postgresql://user:secret@127.0.0.1:9/none")
    told = {finding.what: finding for finding in programs()}
    assert {name: finding.state for name, finding in told.items()} == {
        "bubblewrap": "missing",
        "Java": "missing",
        "Chromium": "missing",
        "PostgreSQL": "wrong",
    }
    assert "apt-get install bubblewrap" in told["bubblewrap"].remedy
    assert all(finding.purpose and finding.remedy for finding in told.values())
    assert "secret" not in str(told)


def test_findings_can_be_had_as_json(command: Command) -> None:
    done = command("doctor", "--json")
    listed = json.loads(done.out)
    assert done.code == 0
    assert {"what", "found", "state", "purpose", "remedy"} == set(listed[0])
    assert {"Python", "memory", "GPU", "stepwell", "stepwell[train]", "vllm", "port 8000", "cache"} <= {
        one["what"] for one in listed
    }


def test_with_strict_whatever_is_missing_makes_it_fail(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination.shutil, "which", lambda _: None)
    assert command("doctor").code == 0
    assert command("doctor", "--strict").code == 1
