"""How many calls run at once, how many a key may make, and whether any may begin: limits, quotas, pause and drain."""

import asyncio
import contextlib
import time
from typing import Final, Literal

from stepwell.errors import RateLimited, Unavailable
from stepwell.gateway.keys import Principal

GateState = Literal["open", "paused", "draining"]
_MINUTE: Final = 60.0


class Gate:
    """What every call passes. Used from one event loop only."""

    def __init__(self, max_calls: int, patience: float) -> None:
        """Let `max_calls` run at once; during a pause calls wait, at most `patience` seconds."""
        self._max_calls = max_calls
        self._patience = patience
        self._turned = asyncio.Event()  # replaced with each change of state
        self._idle = asyncio.Event()
        self._idle.set()
        self._quotas: dict[str, _Quota] = {}
        self.state: GateState = "open"
        self.running = 0
        """Calls under way."""
        self.waiting = 0
        """Calls that wait for the end of a pause."""

    def passing(self, principal: Principal) -> "_Passage":
        """A call, for as long as an `async with` block lasts.

        Raises:
            RateLimited: too many calls run, or the key's quota is used up.
            Unavailable: the gateway drains, or a pause lasts too long.
        """
        return _Passage(self, principal)

    async def enter(self, principal: Principal) -> None:
        """Begin a call, which must `leave`. Raises as `passing`."""
        self._charge(principal)
        if self.state != "open":
            await self._wait()
        if self.running >= self._max_calls:
            raise RateLimited(f"{self.running} calls are under way, which is the limit; try again", retry_after=1.0)
        self.running += 1
        self._idle.clear()

    def leave(self) -> None:
        """End a call."""
        self.running -= 1
        if not self.running:
            self._idle.set()

    def pause(self) -> None:
        """Let calls under way end, and new ones wait until `resume`."""
        self._turn("paused")

    async def drain(self, seconds: float) -> bool:
        """Refuse new calls, and wait until none is under way; False if some still is after `seconds`."""
        self._turn("draining")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        return self.running == 0

    def resume(self) -> None:
        """Let calls begin again, those that wait first."""
        self._turn("open")

    def _turn(self, state: GateState) -> None:
        self.state = state
        self._turned.set()
        self._turned = asyncio.Event()

    async def _wait(self) -> None:
        self.waiting += 1
        try:
            async with asyncio.timeout(self._patience):
                while self.state == "paused":
                    await self._turned.wait()
        except TimeoutError as error:
            raise Unavailable("the gateway is paused; try again", retry_after=5.0) from error
        finally:
            self.waiting -= 1
        if self.state == "draining":
            raise Unavailable("the gateway drains and takes no new calls; try again", retry_after=5.0)

    def _charge(self, principal: Principal) -> None:
        if principal.calls_per_minute is None:
            return
        quota = self._quotas.setdefault(principal.key_id, _Quota(principal.calls_per_minute))
        wait = quota.take(principal.calls_per_minute)
        if wait > 0:
            message = f"the key {principal.name!r} may make {principal.calls_per_minute} calls a minute; try again"
            raise RateLimited(message, retry_after=wait)


class _Passage:
    """What `contextlib` would make of a generator, for a tenth of the time."""

    def __init__(self, gate: Gate, principal: Principal) -> None:
        self._gate = gate
        self._principal = principal

    async def __aenter__(self) -> None:
        await self._gate.enter(self._principal)

    async def __aexit__(self, *_: object) -> None:
        self._gate.leave()


class _Quota:
    """A bucket of tokens that fills steadily."""

    def __init__(self, per_minute: int) -> None:
        self._tokens = float(per_minute)
        self._at = time.monotonic()

    def take(self, per_minute: int) -> float:
        """Take a token; else the seconds until there is one."""
        now = time.monotonic()
        self._tokens = min(float(per_minute), self._tokens + (now - self._at) * per_minute / _MINUTE)
        self._at = now
        if self._tokens < 1:
            return (1 - self._tokens) * _MINUTE / per_minute
        self._tokens -= 1
        return 0.0
