"""Where a trainer publishes weights: the engine loads them, and shows by a log-probability that it has them.

Reloads can be silently wrong (a tied embedding that keeps its old values, a file of another run). So one token is asked
of the engine before anybody is told that the version is served, and where it is another than the trainer computed the
gateway takes no further call until good weights come.
"""

import asyncio
from pathlib import Path
from typing import Annotated, Final

import numpy as np
from fastapi import APIRouter
from pydantic import BaseModel, Field

from stepwell.engines.base import TOLERANCE, Engine, TakesWeights, Weights, WrongWeights
from stepwell.errors import ConfigError, InvalidRequest
from stepwell.gateway.gate import Gate

_LARGEST_ID: Final = 2**31 - 1


class Publication(BaseModel):
    """A new version of the weights."""

    version: int = Field(ge=0)
    """Policy version that the engine's tokens are recorded with from then on."""
    folder: str
    """Where they are, under the same path for the gateway and for the engine's servers."""
    prompt_ids: list[Annotated[int, Field(ge=0, le=_LARGEST_ID)]] = Field(min_length=1)
    """A prompt to try them with."""
    token: int
    """The likeliest token after it."""
    logprob: float
    """Its log-probability, in nats, at temperature 1."""
    tolerance: float = Field(default=TOLERANCE, gt=0)
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
        weights = _weights(publication)
        async with self._turn:
            try:
                difference = await engine.load(weights)
            except ConfigError as error:
                raise InvalidRequest(str(error), param="folder") from error
            except WrongWeights as error:
                self._close()
                raise WrongWeights(f"{error}. Calls wait until good weights come") from error
            self._open()
        return Published(policy_version=engine.policy_version, difference=difference)

    def _close(self) -> None:
        self._spoilt = True
        self._gate.pause()

    def _open(self) -> None:
        if self._spoilt:
            self._spoilt = False
            self._gate.resume()


def _weights(publication: Publication) -> Weights:
    return Weights(
        folder=Path(publication.folder),
        version=publication.version,
        prompt_ids=np.array(publication.prompt_ids, np.int32),
        token=publication.token,
        logprob=publication.logprob,
        tolerance=publication.tolerance,
    )
