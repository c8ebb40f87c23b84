"""Attempts at one and the same call: what an SDK sends again after a failure is not a second step.

A call is a repetition if the client says so (a retry count, an idempotency key) or if it is byte for byte the one
whose attempt failed or was cut. It waits until the earlier attempt is over. If that one did succeed, and only its
answer was lost, that answer is given again; else the call is sampled afresh, in the same trajectory. An identical call
after a success, without such a word, is a new sample.
"""

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from stepwell.gateway.callers import Caller
from stepwell.gateway.dialects.base import ChatCall
from stepwell.pool.base import Receipt

_KEPT: Final = 4096
_SECONDS: Final = 900.0


@dataclass(slots=True, kw_only=True)
class Attempt:
    """What became of a call."""

    trajectory_id: str = ""
    """Empty until it is known."""
    choices: int = 1
    steps: dict[int, str] = field(default_factory=dict)
    """By choice: the steps that are stored and whole."""
    commits: "list[asyncio.Future[list[Receipt]]]" = field(default_factory=list)
    """Steps on their way to the pool, which get there even if the client is gone."""
    failed: bool = False
    """Whether its client got no whole answer."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when nothing of it is under way any more, but for its `commits`."""
    at: float = field(default_factory=time.monotonic)

    @property
    def step_ids(self) -> tuple[str, ...]:
        """Of all choices, in order; empty unless each of them is whole."""
        return tuple(self.steps[choice] for choice in range(self.choices)) if len(self.steps) == self.choices else ()

    def __enter__(self) -> "Attempt":
        """Play it in a `with` block: how that ends is how the attempt ended."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.failed = kind is not None
        self.commits = [commit for commit in self.commits if not commit.done()]  # those done hold their steps
        self.over.set()

    async def settled(self) -> None:
        """Wait until nothing of it is under way any more."""
        await self.over.wait()
        await asyncio.gather(*self.commits, return_exceptions=True)


class Attempts:
    """The last calls, by caller and body."""

    def __init__(self) -> None:
        """Start with none."""
        self._attempts: OrderedDict[bytes, Attempt] = OrderedDict()

    def begin(self, call: ChatCall, caller: Caller) -> tuple[Attempt, Attempt | None]:
        """A new attempt, and the one that it repeats, if it does."""
        key = _key(call, caller)
        earlier = self._attempts.pop(key, None)
        current = Attempt(choices=call.choices)
        self._attempts[key] = current
        if len(self._attempts) > _KEPT:
            self._attempts.popitem(last=False)
        if earlier is None or time.monotonic() - earlier.at > _SECONDS:
            return current, None
        repeats = earlier.failed or caller.retries or bool(caller.idempotency_key)
        return current, earlier if repeats else None


def _key(call: ChatCall, caller: Caller) -> bytes:
    digest = blake2b(caller.scope, digest_size=16)
    for part in (caller.trajectory_id or "", caller.idempotency_key, call.dialect):
        digest.update(f"{part}\n".encode())
    digest.update(call.body)
    return digest.digest()
