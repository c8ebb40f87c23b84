"""`stepwell up`: a cluster file becomes nodes that train, and that are gone afterwards.

Where Ray itself does not matter, a program that only writes down what it is told stands in for a node's Python, and for
ssh.
"""

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from stepwell.cli import fleet
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
PATIENCE = 600.0
"""Seconds: a cluster with its players, a server and a learner import Ray and torch, on cores that others use too."""
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


@pytest.fixture
def nothing_stays(stage: Stage, command: Command) -> Iterator[None]:
    """Nodes that a test leaves behind where it fails would slow down all that come after it, and never end."""
    yield
    if (stage.folder / "cluster.yaml").exists() and stage.nodes_that_run():
        command("up", str(stage.folder / "cluster.yaml"), "--down")


def here(stage: Stage) -> dict[str, Any]:
    return {"host": "localhost", "cpus": 2, "python": stage.python}


def afar(stage: Stage, host: str = "gpu-1") -> dict[str, Any]:
    return {"host": host, "cpus": 4, "gpus": 1, "python": stage.python}


POOL = [*TINY, "pool=postgresql://trainer@db.example/stepwell"]


@needs_ray
def test_a_dry_run_prints_each_command_and_the_plan_and_runs_nothing(stage: Stage, command: Command) -> None:
    file = stage.file(here(stage), afar(stage), ssh=f"{stage.ssh} {{host}}", address="10.0.0.1", settings=POOL)
    port = yaml.safe_load(file.read_text())["port"]
    done = command("up", str(file), "--dry-run")
    lines = done.out.splitlines()
    assert done.code == 0
    assert f"start --head --port {port} --node-ip-address 10.0.0.1" in lines[0]
    assert lines[1].startswith(f"start node 1 (gpu-1): {stage.ssh} gpu-1 '")
    assert f"start --address 10.0.0.1:{port} " in lines[1]
    assert "--num-cpus 4 --num-gpus 1" in lines[1]
    assert [line.split(":")[0] for line in lines[2:4]] == ["stop node 0 (localhost)", "stop node 1 (gpu-1)"]
    assert "mode: ray" in lines
    assert stage.told() == []
    assert not (stage.folder / "run").exists()


@needs_ray
def test_a_node_that_is_not_reached_is_named_with_what_was_said_and_all_are_stopped(
    stage: Stage, command: Command
) -> None:
    file = stage.file(here(stage), afar(stage, "gone"), ssh=f"{stage.refusing} {{host}}", settings=POOL)
    done = command("up", str(file))
    assert done.code == 1
    assert "node 1 (gone) did not start: status 255\n  gone: Connection refused\ntry `" in done.err
    assert "node 1 (gone) was not stopped: status 255" in done.out
    start, stop = stage.told()
    assert ("start --head" in start, stop.split("=")[0]) == (True, "-m stepwell.cli.fleet.stop_node STEPWELL_NODE")


@needs_ray
def test_down_stops_each_node_where_it_is_and_the_head_last(stage: Stage, command: Command) -> None:
    file = stage.file(here(stage), afar(stage), ssh=f"{stage.ssh} {{host}}", address="10.0.0.1", settings=POOL)
    assert command("up", str(file), "--down").code == 0
    ssh, other, head = stage.told()
    assert ssh == "ssh gpu-1"
    assert (other[-2:], head[-2:]) == ("/1", "/0")


@needs_ray
@pytest.mark.parametrize(
    ("nodes", "values", "says"),
    [
        ([{"hots": "localhost"}], {}, "nodes.0.hots: unknown setting; did you mean 'host'?"),
        ([], {"recipes": "lookup"}, "recipes: unknown setting; did you mean 'recipe'?"),
        ([{"host": "gpu-1"}], {}, "one of the nodes must be `host: localhost`"),
        ([], {"ssh": "ssh"}, "ssh must say where {host} goes"),
        ([], {"settings": ["mode=local"]}, "a cluster needs mode=ray"),
        ([], {"settings": ["trainer.update=3"]}, "trainer.update: unknown setting; did you mean 'updates'?"),
        ([], {"settings": ["rollout.workers=3"]}, "the nodes offer 2: set rollout.workers=2"),
        ([{"host": "localhost"}, {"host": "gpu-1"}], {}, "add the setting pool=postgresql://user@host/stepwell"),
        (
            [{"host": "localhost"}, {"host": "gpu-1"}],
            {"settings": ["pool=postgresql://localhost/stepwell"]},
            "postgresql://localhost/stepwell is only on this machine",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mistake_in_the_file_is_named_before_anything_starts(
    stage: Stage, command: Command, nodes: list[dict[str, Any]], values: dict[str, Any], says: str
) -> None:
    done = command("up", str(stage.file(*nodes, **values)))
    assert done.code == 1
    assert says in done.err
    assert "starting" not in done.out


def test_without_ray_the_command_names_what_is_missing(
    stage: Stage, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "stepwell.cli.fleet.nodes", raising=False)
    monkeypatch.delattr(fleet, "nodes", raising=False)
    monkeypatch.delitem(sys.modules, "stepwell.cli.fleet.cluster", raising=False)
    monkeypatch.delattr(fleet, "cluster", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    done = command("up", str(stage.file()))
    assert (done.code, "pip install 'stepwell[ray]'" in done.err) == (1, True)


@needs_ray
@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("STEPWELL_KILLS"), reason="two clusters, two minutes: make test-kills")
@pytest.mark.usefixtures("nothing_stays")
def test_a_run_on_two_nodes_is_interrupted_with_its_nodes_and_brought_up_again(stage: Stage, command: Command) -> None:
    file = stage.file(settings=[*TINY, "trainer.updates=50"])
    with stepwell("up", str(file)) as first:
        first.wait_for("2 nodes", PATIENCE)
        first.wait_for("update    1", PATIENCE)
        assert stage.nodes_that_run() > 1
        assert first.interrupt(PATIENCE) == 130
        rest = "".join(first.rest())
    assert f"go on with: stepwell up {file}" in rest
    assert stage.nodes_that_run() == 0

    done = len(list((stage.folder / "run" / "checkpoints").glob("[0-9]*")))
    assert done
    file = stage.file(settings=[*TINY, "trainer.updates=1"])
    with stepwell("up", str(file), "--keep") as second:
        second.wait_for("done: weights in", PATIENCE)
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
