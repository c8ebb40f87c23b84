"""The feed for asyncio: `consumer`, word for word, with `await`."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from typing import TypeVar, Unpack

import httpx

from stepwell.client import attempts, feed, listings, requests
from stepwell.client.feed import Held, Wanted
from stepwell.client.listings import Logged, Page
from stepwell.client.requests import Call
from stepwell.client.session import kept, reason_of
from stepwell.curation.selection import Selection
from stepwell.errors import StepwellError
from stepwell.pool.base import GroupSummary, Refill, TrajectorySummary
from stepwell.pool.frozen import DatasetInfo
from stepwell.pool.lease import Consumption, Unit

T = TypeVar("T")


class AsyncLease(Held):
    """Units to consume; `AsyncClient.lease` makes it.

    As a context manager it is acknowledged when its block ends well, and given back, with the error as the reason, when
    it raises; unless the block did either itself.
    """

    def __init__(self, client: "AsyncConsumer", handed: feed.Handed) -> None:
        """Tell `client` what becomes of it."""
        super().__init__(handed)
        self._client = client

    async def __aenter__(self) -> "AsyncLease":
        """The lease itself."""
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Acknowledge it, or give it back."""
        if self.settled:
            return
        if error is None:
            await self.ack()
            return
        try:
            await self.nack(reason_of(error))
        except StepwellError as trouble:
            kept(self.id, trouble)

    async def ack(self) -> None:
        """The units are consumed: this consumer never gets them again in this epoch. Again is harmless.

        Raises:
            Conflict: the lease expired, and a unit of it was handed over again: drop what you made of it.
        """
        await self._client.send(feed.ack(self.id))
        self.settled = True

    async def nack(self, reason: str = "") -> None:
        """Give the units back at once, to be handed over again; the gateway logs the reason. Again is harmless."""
        await self._client.send(feed.nack(self.id, reason))
        self.settled = True

    async def extend(self, seconds: float = 600.0) -> float:
        """Hold the units for `seconds` from now; gives the Unix time until which. Raises Conflict, as `ack`."""
        self.expires_at = await self._client.send(feed.extend(self.id, seconds))
        return self.expires_at


class AsyncConsumer:
    """The connection to one gateway, and what consumers and curators do over it; a part of `AsyncClient`."""

    def __init__(self, base_url: str, api_key: str = "", *, timeout: float = 60.0, retries: int = 5) -> None:
        """Nothing is sent yet.

        Args:
            base_url: Of the gateway, such as `http://127.0.0.1:8000`, with or without `/v1`.
            api_key: Needs the scope `ingest` to record, and `trainer` to read and consume; empty where the gateway has
                no keys.
            timeout: Seconds per attempt.
            retries: Further attempts when the gateway is away, busy or paused.
        """
        self.base_url = attempts.without_v1(base_url)
        self._retries = retries
        self._timeout = timeout
        self._http = httpx.AsyncClient(base_url=self.base_url, timeout=timeout, headers=attempts.headers(api_key))

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def lease(self, consumer: str, *, wait: float = 0.0, **wanted: Unpack[Wanted]) -> AsyncLease:
        """Lease ready units as arrays; the lease is empty, and false, if there are none.

        Args:
            consumer: Who asks. Consumers do not take anything from each other; several processes of one name share.
            wait: Seconds to wait for a unit if there is none; may be infinite.
            wanted: The other fields of `LeaseSpec`, such as `limit=8` or `max_staleness=2`.

        Raises:
            InvalidRequest: a field has a value that makes no sense.
            NotFound: there is no such dataset or saved selection.
            NoProducer: there is nothing, and nobody alive who could make something.
            Unavailable: the gateway is gone.
        """
        for spec in feed.turns(consumer, wait, **wanted):
            lease = AsyncLease(self, await self.send(feed.arrays(spec)))
            if lease:
                break
        return lease

    async def leases(
        self, consumer: str, *, wait: float = math.inf, **wanted: Unpack[Wanted]
    ) -> AsyncIterator[AsyncLease]:
        """Lease after lease: the loop of a trainer. Ends when there was nothing for `wait` seconds.

        A lease is acknowledged when the next is asked for, unless it was acknowledged or given back before. Whoever
        leaves the loop early, by `break` or an error, gives back the lease that it is at; acknowledge it before, or use
        it in an `async with` block, if it is done with. `contextlib.aclosing` makes sure that this happens at once.
        Arguments and errors as of `lease`.
        """
        while lease := await self.lease(consumer, wait=wait, **wanted):
            try:
                yield lease
            except GeneratorExit:
                if not lease.settled:
                    await lease.nack("the loop was left")
                raise
            if not lease.settled:
                await lease.ack()

    async def drop_group(self, group_id: str, reason: str) -> None:
        """Give a group up: it will never be ready. Raises NotFound, and Conflict if it is ready."""
        await self.send(feed.drop_group(group_id, reason))

    async def nack_all(self, consumer: str) -> int:
        """Give back whatever `consumer` still holds: it was restarted and lost its leases. Gives their number."""
        return await self.send(feed.nack_all(consumer))

    async def heartbeat(self, producer: str, seconds: float = 60.0) -> None:
        """Say that `producer` makes steps and will say so again within `seconds`. A gateway does so for itself."""
        await self.send(feed.heartbeat(producer, seconds))

    async def consumption(self) -> list[Consumption]:
        """What each consumer holds, has acknowledged and was never given, by epoch."""
        return await self.send(listings.consumption())

    async def refills(self, channel: str | None = None) -> list[Refill]:
        """The groups that cannot become ready with the trajectories that they have, and how many each lacks."""
        return await self.send(listings.refills(channel))

    def trajectories(self, selection: Selection | str | None = None) -> AsyncIterator[TrajectorySummary]:
        """All that a selection, or the saved one of that name, wants, newest first, page by page; rules do not count.

        None wants everything, also what was rejected.
        """
        return self._lines(lambda before: listings.trajectories(selection, before))

    def groups(self, channel: str | None = None) -> AsyncIterator[GroupSummary]:
        """All groups, of one channel or of all, newest first, page by page."""
        return self._lines(lambda before: listings.groups(channel, before))

    async def tail(self, *, after: int | None = None) -> AsyncIterator[Logged]:
        """What is appended to the pool, as it happens, for ever; from the cursor `after` on, or from now on.

        It goes on behind the last record after a lost connection, so nothing is missed and nothing comes twice.

        Raises:
            Unavailable: the gateway is gone, and all further attempts have failed.
        """
        tail = listings.Tail((await self.send(requests.stats())).cursor if after is None else after)
        tries = attempts.Attempts(self.base_url, self._retries)
        while True:
            try:
                async with self._http.stream("GET", tail.path()) as response:
                    if response.is_success:
                        tries = attempts.Attempts(self.base_url, self._retries)
                        async for line in response.aiter_lines():
                            if (logged := tail.read(line)) is not None:
                                yield logged
                    else:
                        await response.aread()
                    wait = tries.ended(response)
            except httpx.TransportError as error:
                wait = tries.failed(error)
            await asyncio.sleep(wait)

    async def selections(self) -> list[str]:
        """Names of the saved selections."""
        return await self.send(listings.selections())

    async def selection(self, name: str) -> Selection:
        """A selection that was saved. Raises NotFound."""
        return await self.send(listings.selection(name))

    async def save_selection(self, name: str, selection: Selection) -> None:
        """Keep `selection` under `name`, in place of what had that name."""
        await self.send(listings.save_selection(name, selection))

    async def datasets(self) -> list[DatasetInfo]:
        """All versions of all datasets, by name, newest first."""
        return await self.send(listings.datasets())

    async def freeze(self, name: str, selection: Selection | str, *, unit: Unit = "group") -> DatasetInfo:
        """Make what `selection` (or the saved one of that name) wants now the next version of the dataset `name`.

        If nothing has changed since its newest version, that one is given and none is made.
        """
        return await self.send(listings.freeze(name, selection, unit))

    async def send(self, call: Call[T]) -> T:
        """Make one request, again if it has to be."""
        tries = attempts.Attempts(self.base_url, self._retries)
        headers, timeout = {"accept": call.accept}, self._timeout + call.wait
        while True:
            try:
                response = await self._http.request(
                    call.method, call.path, content=call.body, headers=headers, timeout=timeout
                )
            except httpx.TransportError as error:
                wait = tries.failed(error)
            else:
                if not tries.again(response):
                    return attempts.read(call, response)
                wait = tries.wait(response)
            await asyncio.sleep(wait)

    async def _lines(self, call: Callable[[int | None], Call[Page[T]]]) -> AsyncIterator[T]:
        page = await self.send(call(None))
        for line in page.lines:
            yield line
        while page.before is not None:
            page = await self.send(call(page.before))
            for line in page.lines:
                yield line
