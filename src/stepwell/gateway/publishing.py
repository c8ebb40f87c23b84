"""Where a trainer publishes weights: the engine loads them, and shows by a log-probability that it has them.

Reloads can be silently wrong (a tied embedding that keeps its old values, a file of another run). So one token is asked
of the engine before anybody is told that the version is served, and where it is another than the trainer computed the
gateway takes no further call until good weights come.
"""

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Final

import numpy as np
from fastapi import APIRouter
from pydantic import BaseModel, Field

from stepwell.engines.base import Engine, Generation, TakesWeights
from stepwell.errors import EngineError, InvalidRequest
from stepwell.gateway.gate import Gate
from stepwell.types import Sampling

_TOLERANCE: Final = 1e-2
"""Nats by which two programs, or two precisions, may differ in the log-probability of one token."""


class Publication(BaseModel):
    """A new version of the weights."""

    version: int = Field(ge=0)
    """Policy version that the engine's tokens are recorded with from then on."""
    folder: str
    """Where they are, on the machine of the engine."""
    prompt_ids: list[int] = Field(min_length=1)
    """A prompt to try them with."""
    token: int
    """The likeliest token after it."""
    logprob: float
    """Its log-probability, in nats, at temperature 1."""
    tolerance: float = Field(default=_TOLERANCE, gt=0)
    """By how much the engine's may differ."""


class Published(BaseModel):
    """The version is served."""

    policy_version: int
    difference: float
    """Of the engine's log-probability from the trainer's, in nats."""


class Publishing:
    """The route; one version at a time."""

    def __init__(self, engine: Engine, gate: Gate) -> None:
        """Load into `engine`, and close `gate` over weights that are wrong."""
        self._engine = engine
        self._gate = gate
        self._turn = asyncio.Lock()
        self._spoilt = False
        """Whether it was us who closed the gate."""

    def router(self) -> APIRouter:
        """The route of this door."""
        router = APIRouter(tags=["operations"])
        router.add_api_route("/v1/admin/weights", self.publish, methods=["POST"])
        return router

    async def publish(self, publication: Publication) -> Published:
        """Have the engine load weights, and compare what it computes from them."""
        engine = self._engine
        if not isinstance(engine, TakesWeights):
            raise InvalidRequest(f"the engine of {engine.model!r} cannot load weights; start it again with them")
        async with self._turn:
            await engine.load(Path(publication.folder), publication.version)
            difference = await self._difference(publication)
            if not difference <= publication.tolerance:
                self._spoilt = True
                self._gate.pause()
                raise EngineError(
                    f"the engine does not compute what version {publication.version} does: the log-probability of "
                    f"token {publication.token} differs by {difference:.3g} nats. Calls wait until good weights come"
                )
            if self._spoilt:
                self._spoilt = False
                self._gate.resume()
        return Published(policy_version=engine.policy_version, difference=difference)

    async def _difference(self, publication: Publication) -> float:
        request = Generation(
            prompt_ids=np.array(publication.prompt_ids, np.int32),
            sampling=Sampling(temperature=1.0, max_tokens=1),
            top_logprobs=1,
        )
        async with aclosing(self._engine.generate(request)) as chunks:
            tops = [top async for chunk in chunks for top in chunk.top]
        found = dict(tops[0]) if tops else {}
        return abs(found.get(publication.token, float("inf")) - publication.logprob)
