"""`stepwell up`: a cluster file becomes nodes that train, and that are gone afterwards.

Where Ray itself does not matter, a program that only writes down what it is told stands in for a node's Python, and for
ssh.
"""

import shlex
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from stepwell.cli.serving import free_port
from tests.cli.processes import Finished, stepwell

Command = Callable[..., Finished]
TINY = [
    "rollout.workers=2",
    "rollout.group_size=2",
    "warmup.updates=3",
    "trainer.groups_per_update=2",
    "trainer.stop_at_reward=null",
    "trainer.checkpoint_every=1",
]
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'stepwell[ray]'")


class Stage:
    """A folder with cluster files, and with what stands in for programs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.record = folder / "record"
        self.python = self._program("python", f'echo "$*" >> {shlex.quote(str(self.record))}')
        self.ssh = self._program(
            "ssh", f'host=$1; shift; echo "ssh $host" >> {shlex.quote(str(self.record))}; sh -c "$*"'
        )
        self.refusing = self._program("refusing", 'echo "$1: Connection refused" >&2; exit 255')

    def _program(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    def file(self, *nodes: dict[str, Any], **values: Any) -> Path:
        """A cluster file; without a word on `nodes`, of two with a CPU each, on this machine."""
        path = self.folder / "cluster.yaml"
        here = [{"host": "localhost", "cpus": 1}, {"host": "localhost", "cpus": 1}]
        own = {"nodes": list(nodes) or here, "port": free_port("0.0.0.0"), "recipe": "lookup", "settings": TINY}
        path.write_text(yaml.safe_dump(own | {"folder": str(self.folder / "run")} | values))
        return path

    def told(self) -> list[str]:
        """What the programs were told."""
        return self.record.read_text().splitlines() if self.record.exists() else []

    def nodes_that_run(self) -> int:
        """Processes of Ray that `stepwell up` started for a file of this port."""
        mark = f":{yaml.safe_load((self.folder / 'cluster.yaml').read_text())['port']}/".encode()
        return sum(mark in variable for folder in Path("/proc").glob("[0-9]*") for variable in _marks(folder))


def _marks(process: Path) -> list[bytes]:
    try:
        variables = (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return []
    return [variable for variable in variables if variable.startswith(b"STEPWELL_NODE=")]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


@needs_ray
@pytest.mark.slow
def test_a_run_on_two_nodes_is_interrupted_with_its_nodes_and_brought_up_again(stage: Stage, command: Command) -> None:
    file = stage.file(settings=[*TINY, "trainer.updates=50"])
    with stepwell("up", str(file)) as first:
        first.wait_for("2 nodes")
        first.wait_for("update    1")
        assert stage.nodes_that_run() > 1
        assert first.interrupt() == 130
        rest = "".join(first.rest())
    assert f"go on with: stepwell up {file}" in rest
    assert stage.nodes_that_run() == 0

    done = len(list((stage.folder / "run" / "checkpoints").glob("[0-9]*")))
    assert done
    file = stage.file(settings=[*TINY, "trainer.updates=1"])
    with stepwell("up", str(file), "--keep") as second:
        second.wait_for("done: weights in")
        second.wait_for("the nodes run on: RAY_ADDRESS=")
        second.rest()
        assert second.process.returncode == 0
    try:
        assert stage.nodes_that_run() > 1
        again = command("up", str(file))
        assert (again.code, f"`stepwell up {file} --down` stops it" in again.err) == (1, True)
    finally:
        assert command("up", str(file), "--down").code == 0
    assert stage.nodes_that_run() == 0
