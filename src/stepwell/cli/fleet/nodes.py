"""The nodes of a cluster file: what starts and stops each, on whichever machine, and what it said to that."""

import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO, Final

import ray

from stepwell.cli.cluster_file import ClusterConfig, NodeConfig
from stepwell.cli.fleet.cluster import check_reached
from stepwell.errors import Unavailable

_MARK: Final = "STEPWELL_NODE"
"""Variable of the environment by which a node's processes are found again."""
_STORE: Final = 128 * 2**20
"""Bytes for objects on each node: what players tell is small."""
_LINES: Final = 12
"""Of what a command said last, that an error quotes."""
_STOPPING: Final = 60.0
"""Seconds that a node has to stop."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What became of a command."""

    good: bool
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node, as it is started and stopped from this machine."""

    name: str
    start: Sequence[str]
    stop: Sequence[str]
    resource: str
    """What only this node offers, by which it is known in the cluster."""
    remedy: str
    """What to look at where it does not start."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """All nodes of a file."""

    address: str
    """Of the cluster, `host:port`."""
    nodes: Sequence[Node]
    """The head first."""
    patience: float

    def start(self) -> None:
        """Start all of them, the head before the others.

        Raises:
            Unavailable: some did not start. The others did, or may still.
        """
        head, others = self.nodes[:1], self.nodes[1:]
        for some in (head, others):
            outcomes = _run([node.start for node in some], self.patience)
            failed = [
                f"{node.name} did not start: {outcome.said}\n{node.remedy}"
                for node, outcome in zip(some, outcomes, strict=True)
                if not outcome.good
            ]
            if failed:
                raise Unavailable("\n".join(failed))

    def stop(self) -> list[str]:
        """Stop all of them, the head last; those that are not there are stopped, too. Gives what went wrong."""
        wrong = []
        for some in (self.nodes[1:], self.nodes[:1]):
            outcomes = _run([node.stop for node in some], _STOPPING)
            wrong += [
                f"{node.name} was not stopped: {outcome.said}"
                for node, outcome in zip(some, outcomes, strict=True)
                if not outcome.good
            ]
        return wrong

    @contextmanager
    def joined(self) -> Iterator[None]:
        """This process in the cluster, once all nodes are.

        Raises:
            Unavailable: it cannot be reached, or some node does not join in time.
        """
        check_reached(self.address, "its head has started there: is the port open, and `address` right?")
        try:
            ray.init(address=self.address, logging_level="warning")
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise Unavailable(f"the cluster at {self.address} does not let this process in: {error}") from error
        try:
            self._wait()
            yield
        finally:
            ray.shutdown()

    def _wait(self) -> None:
        deadline = time.monotonic() + self.patience
        while missing := self._missing():
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"{', '.join(missing)} started, but did not join the cluster at {self.address} within "
                    f"{self.patience:g} s: can that address be reached from there?"
                )
            time.sleep(0.2)

    def _missing(self) -> list[str]:
        offered = {resource for node in ray.nodes() if node["Alive"] for resource in node["Resources"]}
        return [node.name for node in self.nodes if node.resource not in offered]


def planned(config: ClusterConfig) -> Nodes:
    """What the file comes to on this machine."""
    head = config.nodes[0]
    host = config.address or (ray.util.get_node_ip_address() if head.local else head.host)
    address = f"{host}:{config.port}"
    nodes = []
    for number, node in enumerate(config.nodes):
        mark, resource = f"{_MARK}={address}/{number}", f"stepwell_node_{number}"
        python = node.python or sys.executable
        offers = ["--resources", json.dumps({resource: 1}), "--object-store-memory", str(_STORE)]
        offers += ["--num-cpus", str(node.cpus)] if node.cpus is not None else []
        offers += ["--num-gpus", str(node.gpus)] if node.gpus is not None else []
        place = _as_head(config) if number == 0 else ["--address", address]
        # Ray reports to nobody; and on macOS it must be told that several nodes are meant
        start = ["env", "RAY_USAGE_STATS_ENABLED=0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=1"]
        start += [
            f"RAY_AUTH_MODE={config.auth_mode}",
            mark,
            python,
            "-m",
            "ray.scripts.scripts",
            "start",
            *place,
            *offers,
            "--log-style",
            "record",
        ]
        nodes.append(
            Node(
                name=f"node {number} ({node.host})",
                start=_there(config, node, start),
                stop=_there(config, node, [python, "-m", "stepwell.cli.fleet.stop_node", mark]),
                resource=resource,
                remedy=_remedy(config, node, python),
            )
        )
    return Nodes(address, nodes, config.patience)


def _as_head(config: ClusterConfig) -> list[str]:
    own = ["--node-ip-address", config.address] if config.address else []
    return ["--head", "--port", str(config.port), *own, "--include-dashboard", str(config.dashboard).lower()]


def _there(config: ClusterConfig, node: NodeConfig, command: Sequence[str]) -> list[str]:
    if node.local:
        return list(command)
    return [part.replace("{host}", node.host) for part in shlex.split(config.ssh)] + [shlex.join(command)]


def _remedy(config: ClusterConfig, node: NodeConfig, python: str) -> str:
    if node.local:
        return f"Ray has to be there for {python}: pip install 'stepwell[train,envs,ray]'"
    ssh = config.ssh.replace("{host}", node.host)
    return f"try `{ssh} {python} -m ray.scripts.scripts --version`: it has to answer without asking for a password"


def _run(commands: Sequence[Sequence[str]], seconds: float) -> list[_Outcome]:
    """All at once. Those that have not ended by then, or by an interrupt, are killed."""
    deadline = time.monotonic() + seconds
    with ExitStack() as running:
        outcomes = [running.enter_context(_begun(command)) for command in commands]
        return [outcome(deadline) for outcome in outcomes]


@contextmanager
def _begun(command: Sequence[str]) -> Iterator[Callable[[float], _Outcome]]:
    with tempfile.TemporaryFile() as said:  # no pipe, which what is started would keep open
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us, who then stop what they started
            )
        except OSError as error:
            reason = f"cannot run {command[0]}: {error.strerror}"
            yield lambda _: _Outcome(False, reason)
            return

        def outcome(deadline: float) -> _Outcome:
            try:
                status = process.wait(max(deadline - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                return _Outcome(False, f"it had not ended in time{_last_lines(said)}")
            return _Outcome(status == 0, f"status {status}{_last_lines(said)}")

        try:
            yield outcome
        finally:
            process.kill()
            process.wait()


def _last_lines(said: IO[bytes]) -> str:
    said.seek(0)
    lines = said.read().decode(errors="replace").strip().splitlines()[-_LINES:]
    return "".join(f"\n  {line}" for line in lines)
