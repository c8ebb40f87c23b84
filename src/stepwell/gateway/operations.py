"""Routes for those who run the gateway: is it alive, is it ready, what does it measure; pause, drain, resume."""

import asyncio
from typing import Final, Literal

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, Field

from stepwell.engines.base import Engine
from stepwell.errors import PoolError
from stepwell.gateway.gate import Gate, GateState
from stepwell.gateway.observe import Meters
from stepwell.pool.base import Pool

_PATIENCE: Final = 10.0
"""Seconds after which an engine that does not say whether it is well counts as unwell."""


class Health(BaseModel):
    """The process answers."""

    status: Literal["ok"] = "ok"
    model: str
    policy_version: int


class Readiness(BaseModel):
    """Whether a call would be answered now."""

    ready: bool
    engine: bool
    """Whether the engine could serve a request."""
    pool: bool
    """Whether the pool can be read, and could store the last step; half a minute after a failure it is tried again."""
    gate: GateState


class Traffic(BaseModel):
    """What is under way."""

    gate: GateState
    running: int
    """Calls under way."""
    waiting: int
    """Calls that wait for the end of a pause."""
    policy_version: int


class Drained(Traffic):
    """Answer to a drain."""

    drained: bool
    """Whether no call is under way any more."""


class DrainOrder(BaseModel):
    """How to drain."""

    seconds: float = Field(default=60.0, gt=0, le=3600)
    """Longest wait for calls under way."""


class Operations:
    """The routes; everything they report on is handed in."""

    def __init__(self, engine: Engine, pool: Pool, gate: Gate, meters: Meters) -> None:
        """Report on these parts, and turn the gate; `meters` know how storing went."""
        self._engine = engine
        self._pool = pool
        self._gate = gate
        self._meters = meters

    def router(self) -> APIRouter:
        """All routes of this door."""
        router = APIRouter(tags=["operations"])
        router.add_api_route("/health", self.health, methods=["GET"])
        router.add_api_route("/ready", self.ready, methods=["GET"], responses={503: {"model": Readiness}})
        router.add_api_route("/metrics", self.metrics, methods=["GET"], response_class=Response)
        router.add_api_route("/v1/admin/status", self.traffic, methods=["GET"])
        router.add_api_route("/v1/admin/pause", self.pause, methods=["POST"])
        router.add_api_route("/v1/admin/drain", self.drain, methods=["POST"])
        router.add_api_route("/v1/admin/resume", self.resume, methods=["POST"])
        return router

    async def health(self) -> Health:
        """The process is alive; nothing else is asked."""
        return Health(model=self._engine.model, policy_version=self._engine.policy_version)

    async def ready(self) -> Response:
        """Whether a call would be answered now: 200 if so, 503 if not."""
        engine, readable = await asyncio.gather(self._engine_is_well(), asyncio.to_thread(self._pool_is_readable))
        pool, gate = readable and self._meters.pool_well, self._gate.state
        state = Readiness(ready=engine and pool and gate == "open", engine=engine, pool=pool, gate=gate)
        return JSONResponse(state.model_dump(), 200 if state.ready else 503)

    async def metrics(self) -> Response:
        """Metrics in Prometheus' text format."""
        return Response(generate_latest(self._meters.registry), media_type=CONTENT_TYPE_LATEST)

    async def traffic(self) -> Traffic:
        """What is under way."""
        return self._traffic()

    async def pause(self) -> Traffic:
        """Let calls under way end and new ones wait, for the time of a weight update, say."""
        self._gate.pause()
        return self._traffic()

    async def drain(self, order: DrainOrder | None = None) -> Drained:
        """Refuse new calls with 503 and Retry-After, and wait until none is under way."""
        drained = await self._gate.drain((order or DrainOrder()).seconds)
        return Drained(**self._traffic().model_dump(), drained=drained)

    async def resume(self) -> Traffic:
        """Take calls again."""
        self._gate.resume()
        return self._traffic()

    def _traffic(self) -> Traffic:
        gate = self._gate
        version = self._engine.policy_version
        return Traffic(gate=gate.state, running=gate.running, waiting=gate.waiting, policy_version=version)

    async def _engine_is_well(self) -> bool:
        try:
            return await asyncio.wait_for(self._engine.healthy(), _PATIENCE)
        except TimeoutError:
            return False

    def _pool_is_readable(self) -> bool:
        try:
            self._pool.stats()
        except PoolError:
            return False
        return True
