"""The gateway and the engine of a run in a process of their own: served the newest weights, begun again if it dies."""

import logging
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx

from stepwell.errors import EngineError
from stepwell.gateway.keys import KeyRing
from stepwell.policy.probe import Probe

LOOPBACK: Final = "127.0.0.1"
Write = Callable[[Path], Probe]
"""Writes the weights as they are into a folder, and tells what they compute."""

_log: Final = logging.getLogger(__name__)
_START: Final = 180.0
"""Seconds within which it must serve."""
_PLAYERS, _TRAINER = "players of this run", "trainer of this run"
"""Names of its own keys, new at each start; others in the file are people's."""
_DEATHS: Final = 5
"""So often it may die in a row, without having served, before it is not begun again."""
_KEPT: Final = 2
"""Published versions that stay on disk: the newest, and the one that may still be read."""


class Server:
    """`stepwell serve` of a run, and how weights get there."""

    def __init__(self, folder: Path, pool: str, port: int, host: str = LOOPBACK, *, weights: str = "weights") -> None:
        """To serve the run in `folder`; `wait` until it does, and `close` it. Beyond loopback it lets in its own.

        What is published goes through `folder / weights`.
        """
        self.url: Final = f"http://{host}:{port}"
        self._weights = folder / weights
        python = [sys.executable, "-m", "stepwell", "serve", "--run", str(folder), "--pool", pool, "--port", str(port)]
        self._command = [*python, "--host", host, "--until-stdin-ends"]
        self.player_key = "unused"
        """With which players may call the model."""
        self._own_key = "unused"
        if host != LOOPBACK:
            keys = KeyRing.open(folder / "keys.json")
            for old in [key.id for key in keys.keys if key.name in (_PLAYERS, _TRAINER)]:  # lost with whoever had them
                keys.revoke(old)
            self.player_key, self._own_key = keys.create(_PLAYERS, ["agent"]), keys.create(_TRAINER, ["admin"])
            self._command += ["--keys", str(folder / "keys.json")]
        shutil.rmtree(self._weights, ignore_errors=True)  # of an earlier process: in its checkpoint by now, or lost
        self._http = httpx.Client(base_url=self.url)  # one: each would read all certificates first
        self._log = (folder / "serve.log").open("ab")
        self._closing = False
        self._turn = threading.Lock()
        """Whoever begins or ends it."""
        self._lost = ""
        """Why it is not begun again."""
        self._published: tuple[int, Probe] | None = None
        self._sending = threading.Lock()
        self._process = self._begin()
        self._guard = threading.Thread(target=self._live, name="stepwell-server-guard", daemon=True)
        self._guard.start()

    @property
    def pid(self) -> int:
        """Of the process that serves now."""
        return self._process.pid

    def publish(self, version: int, write: Write) -> None:
        """Have this version served, once it was compared with what the engine computes from it.

        Raises:
            EngineError: it does not, or the server cannot be reached for long.
        """
        folder = self._weights / f"{version:06d}"
        partial = folder.with_name(f".{folder.name}")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        told = write(partial)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
        self._published = version, told
        with self._sending:
            self._send(lambda: self._lost)
        for old in sorted(self._weights.glob("[0-9]*"))[:-_KEPT]:  # versions only go up
            shutil.rmtree(old, ignore_errors=True)

    def close(self) -> None:
        """End it; calls under way are answered first."""
        with self._turn:
            self._closing = True
            process = self._process
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._guard.join()
        self._http.close()
        self._log.close()

    def wait(self) -> None:
        """Until it serves. Raises EngineError if it does not come up."""
        end = time.monotonic() + _START
        while not self._serves():
            if self._lost:
                raise EngineError(self._lost)
            if time.monotonic() > end:
                raise EngineError(f"the server of the run did not come up within {_START:.0f} s; see {self._log.name}")
            time.sleep(0.1)

    def _serves(self) -> bool:
        try:
            return self._http.get("/ready", timeout=5).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def _begin(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=self._log, stderr=self._log)

    def _live(self) -> None:
        """The thread: when it dies, begin it again, and give it what it served."""
        deaths, served = 0, False
        while True:
            if self._brought_up():
                deaths, served = 0, True
            status = self._process.wait()
            deaths += 1
            time.sleep(0.5 * deaths)
            with self._turn:
                if self._closing:
                    return
                died = f"the server of the run died (status {status})"
                if deaths > _DEATHS or (status > 0 and not served):  # not killed: it cannot be begun, and says why
                    self._lost = f"{died}; see {self._log.name}"
                    _log.error("%s", self._lost)
                    return
                _log.warning("%s and is begun again", died)
                self._process = self._begin()

    def _brought_up(self) -> bool:
        """Whether the process serves the newest version; False: it died, or is to end. Nobody but this thread would
        begin another, so it must not wait for one that is dead."""

        def over() -> str:
            return "it died again" if self._closing or self._process.poll() is not None else ""

        while not self._serves():
            if over():
                return False
            time.sleep(0.1)
        while not self._sending.acquire(timeout=0.1):
            if over():
                return False
        try:
            if self._published is not None:
                self._send(over)
        except EngineError as error:
            if not over():
                _log.error("the server of the run came back, and does not serve as before: %s", error)
            return False
        finally:
            self._sending.release()
        return True

    def _send(self, in_vain: Callable[[], str]) -> None:
        """Have what is published served, which takes `_sending`. Tried again until somebody answers, or until it is in
        vain for the reason that is given."""
        assert self._published is not None
        version, told = self._published
        order = {
            "version": version,
            "folder": str((self._weights / f"{version:06d}").absolute()),
            "prompt_ids": told.prompt_ids,
            "token": told.token,
            "logprob": told.logprob,
        }
        headers = {"authorization": f"Bearer {self._own_key}"}
        end = time.monotonic() + _START
        while True:
            try:
                answer = self._http.post("/v1/admin/weights", json=order, headers=headers, timeout=_START)
                break
            except httpx.TransportError as error:
                if why := in_vain() or (str(error) if time.monotonic() > end else ""):
                    raise EngineError(f"version {version} could not be published: {why}") from error
                time.sleep(0.2)
        if answer.status_code != httpx.codes.OK:
            raise EngineError(f"version {version} could not be published: {answer.text[:500]}")


@contextmanager
def serving(server: Server, version: int, write: Write) -> Iterator[Server]:
    """The policy of a run, as it is, behind a gateway in another process for as long as the block lasts."""
    try:
        server.wait()
        server.publish(version, write)
        yield server
    finally:
        server.close()
