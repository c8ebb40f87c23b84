"""One client against one gateway of its own: what passed the door, what the engine did, what the pool holds."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stepwell.gateway.app import create_app
from stepwell.gateway.config import GatewayConfig
from stepwell.gateway.dialects import DIALECTS
from stepwell.pool.store import SQLitePool
from stepwell.types import Trajectory
from tests.clients.models import Model
from tests.clients.roster import Client
from tests.clients.sandbox import Ended, Site, drive, settle
from tests.clients.tutor import Played, Tutor
from tests.fakes.servers import serving


@dataclass(kw_only=True)
class Request:
    """One request as it reached the gateway."""

    method: str
    path: str
    status: int = 0
    streamed: bool = False

    @property
    def is_call(self) -> bool:
        """Whether it asks for an answer of the model."""
        return self.method == "POST" and self.path.endswith(tuple(dialect.path for dialect in DIALECTS))


class Doorkeeper:
    """ASGI middleware that notes every request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.requests: list[Request] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(method=scope["method"], path=scope["path"])
        self.requests.append(request)

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                request.status = message["status"]
                request.streamed = any(b"event-stream" in value for _, value in message["headers"])
            await send(message)

        await self._app(scope, receive, noted)


@dataclass(frozen=True, kw_only=True)
class Performance:
    """All that is known about one client's run."""

    client: Client
    model: str
    ended: Ended
    seconds: float
    requests: list[Request]
    played: list[Played]
    trajectories: list[Trajectory] = field(default_factory=list)


def perform(client: Client, model: Model) -> Performance:
    """Drive `client` against a new gateway and a new pool."""
    with tempfile.TemporaryDirectory(prefix="stepwell-client-") as folder, stored_in(Path(folder)) as pool:
        tutor = Tutor(model.engine, client.lesson)
        door = Doorkeeper(create_app(tutor, model.renderer, pool, GatewayConfig(model_aliases=("*",))))
        started = time.monotonic()
        with serving(door) as url:
            site = Site(url=url, home=Path(folder) / "home")
            settle(site, client.files(site))
            ended = drive(site, client.command(site), client.seconds)
        return Performance(
            client=client,
            model=model.engine.model,
            ended=ended,
            seconds=time.monotonic() - started,
            requests=door.requests,
            played=tutor.played,
            trajectories=[pool.trajectory(line.info.id) for _, line in pool.trajectories(limit=1000)],
        )


@contextmanager
def stored_in(folder: Path) -> Iterator[SQLitePool]:
    """A new pool in a folder."""
    pool = SQLitePool.open(folder / "pool.sqlite")
    try:
        yield pool
    finally:
        pool.close()
