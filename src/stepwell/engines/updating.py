"""What engines whose servers take new weights have in common: pause, replace, resume, compare."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Final, Literal

from stepwell.engines.base import Chunk, Generation, Weights, WrongWeights
from stepwell.engines.served import ServedConfig, ServedEngine
from stepwell.engines.upstream import Refused, Upstream
from stepwell.engines.weights import Layout, holds_adapter, layout_of, refuse_others, verified
from stepwell.errors import ConfigError, StepwellError

UnderWay = Literal["continue", "finish"]
_NO_SUCH_ROUTE: Final = (404, 405)


class UpdatableConfig(ServedConfig):
    """Base of the settings of servers that take new weights."""

    under_way: UnderWay = "continue"
    """What becomes of requests under way when weights are published: they `continue` with the new ones, or `finish`
    with the old ones first, while new requests wait."""


class UpdatableEngine(ServedEngine):
    """Meets `stepwell.engines.base.TakesWeights`; subclasses say how their server is told."""

    START_WITH = ""
    """How to start a server that takes weights."""

    def __init__(
        self,
        upstream: Upstream,
        *,
        model: str,
        context_length: int,
        policy_version: int,
        under_way: UnderWay,
        root: str,
    ) -> None:
        """`root`: the folder that the server was started with, as far as it tells."""
        super().__init__(upstream, model=model, context_length=context_length, policy_version=policy_version)
        self._under_way = under_way
        self._known: dict[bool, Layout] = {}
        """What was taken before: adapters, and whole models."""
        if root:
            with contextlib.suppress(ConfigError):  # it is the server's, and may be out of sight
                self._known[False] = layout_of(Path(root))

    async def load(self, weights: Weights) -> float:
        """Have the server take them (see the protocol).

        Nothing is sampled while it has some of them: requests that are under way, or come, wait in the server. After a
        failure that leaves it with weights of no version it stays so, until good ones are loaded.
        """
        layout = await asyncio.to_thread(layout_of, weights.folder)
        self.refuse(weights.folder, layout)
        before = self.policy_version
        try:
            await self.pause(self.manner(weights))
        except BaseException:  # nothing is replaced yet, so it is to go on with what it has
            with contextlib.suppress(StepwellError):
                await asyncio.shield(self.resume())
            raise
        try:
            await self._replaced(weights)
            await self.forget()
            self.policy_version = weights.version  # before anything is sampled with them
            await self.resume()
            difference = await verified(self, weights)
        except ConfigError:
            await self.resume()
            raise
        except StepwellError as error:
            self.policy_version = before
            with contextlib.suppress(StepwellError):
                await self.pause("continue")  # not to finish, with such weights
            raise WrongWeights(f"{self.url} failed to take version {weights.version}: {error}") from error
        self._known[holds_adapter(weights.folder)] = layout
        return difference

    async def _replaced(self, weights: Weights) -> None:
        try:
            await self.replace(weights)
        except Refused as error:
            known = error.status not in _NO_SUCH_ROUTE
            remedy = "" if known else f"; start it with {self.START_WITH}"
            raise ConfigError(f"{self.url} takes no weights{remedy}: {error}") from error

    def generate(self, request: Generation) -> AsyncGenerator[Chunk, None]:
        """Stream one completion (see the protocol)."""
        raise NotImplementedError

    def refuse(self, folder: Path, layout: Layout) -> None:
        """Raise ConfigError for a checkpoint that the server must not be given."""
        if (known := self._known.get(holds_adapter(folder))) is not None:
            refuse_others(layout, known)

    def manner(self, weights: Weights) -> UnderWay:  # noqa: ARG002 - for subclasses
        """What becomes of requests that are under way when `weights` come."""
        return self._under_way

    async def pause(self, under_way: UnderWay) -> None:
        """Have nothing sampled until `resume`, once what is under way has finished if that is wanted."""
        raise NotImplementedError

    async def replace(self, weights: Weights) -> None:
        """Have the weights loaded. Raises `Refused` only if nothing was done."""
        raise NotImplementedError

    async def forget(self) -> None:
        """Have what was computed from the old weights forgotten."""
        raise NotImplementedError

    async def resume(self) -> None:
        """Have it sample again."""
        raise NotImplementedError

    async def told(self, path: str, body: dict[str, Any]) -> None:
        """Send an order that older servers do not know, and do without."""
        try:
            await self._upstream.tell(path, body)
        except Refused as error:
            if error.status not in _NO_SUCH_ROUTE:
                raise
