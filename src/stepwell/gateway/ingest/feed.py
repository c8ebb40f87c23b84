"""The feed over HTTP: lease, acknowledge, look through the log, curate; everything that a consumer elsewhere needs."""

import asyncio
import dataclasses
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError

from stepwell.config import Config
from stepwell.curation.selection import Selection
from stepwell.errors import InvalidRequest
from stepwell.gateway.config import GatewayConfig
from stepwell.gateway.ingest.bodies import Body, described
from stepwell.gateway.ingest.feed_wire import ConsumerWire, DropWire, ExtendWire, FreezeWire, NackWire
from stepwell.gateway.ingest.views import log_line, trajectory_shape
from stepwell.gateway.problems import explain, logged, problem_json
from stepwell.gateway.transport import CLIENT_CLOSED, ClientGone, Ending, EventStream, ending_of, unless_gone
from stepwell.pool.arrays import step_arrays, to_msgpack
from stepwell.pool.base import Pool
from stepwell.pool.frozen import DatasetInfo
from stepwell.pool.lease import Lease, LeaseSpec
from stepwell.types import Record

_log: Final = logging.getLogger(__name__)
_C = TypeVar("_C", bound=Config)
_T = TypeVar("_T")
_SLICE: Final = 0.5
"""Seconds that a thread of this process waits at a time for something to lease."""
_LOOK: Final = 0.5
"""Seconds between two looks for something new."""
_ARROW: Final = "application/vnd.apache.arrow.stream"
_MSGPACK: Final = "application/msgpack"
_ANSWERS: Final = {"/leases": ("application/json", _MSGPACK, _ARROW), "/log/tail": ("text/event-stream",)}
"""What routes answer with that do not always answer in JSON."""
_Limit = Annotated[int, Query(ge=1, le=1000)]
_Cursor = Annotated[int, Query(ge=0, le=2**63 - 1)]
_Before = Annotated[int | None, Query(ge=0, le=2**63 - 1)]


class Feed:
    """The routes below `/v1` of those who consume and curate."""

    def __init__(self, pool: Pool, config: GatewayConfig) -> None:
        """Serve `pool`, within the limits of `config`."""
        self._pool = pool
        self._config = config

    def router(self) -> APIRouter:
        """All routes of this door."""
        router = APIRouter(prefix="/v1", tags=["feed"])
        for path, method, endpoint, body in (
            ("/leases", "POST", self.lease, LeaseSpec),
            ("/leases/nack", "POST", self.nack_all, ConsumerWire),
            ("/leases/{lease_id}/ack", "POST", self.ack, None),
            ("/leases/{lease_id}/nack", "POST", self.nack, NackWire),
            ("/leases/{lease_id}/extend", "POST", self.extend, ExtendWire),
            ("/producers/{name:path}", "POST", self.heartbeat, ExtendWire),
            ("/consumption", "GET", self.consumption, None),
            ("/refills", "GET", self.refills, None),
            ("/groups/{group_id}/drop", "POST", self.drop, DropWire),
            ("/trajectories", "GET", self.trajectories, None),
            ("/groups", "GET", self.groups, None),
            ("/log", "GET", self.log, None),
            ("/log/tail", "GET", self.tail, None),
            ("/selections", "GET", self.selections, None),
            ("/selections/{name:path}", "GET", self.selection, None),
            ("/selections/{name:path}", "PUT", self.save_selection, Selection),
            ("/datasets", "GET", self.datasets, None),
            ("/datasets", "POST", self.freeze, FreezeWire),
        ):
            extra = described(body.__name__, required=body is not NackWire) if body else None
            kinds = _ANSWERS.get(path, ("application/json",))
            answers: dict[int | str, dict[str, Any]] = {200: {"content": {kind: {} for kind in kinds}}}
            router.add_api_route(path, endpoint, methods=[method], openapi_extra=extra, responses=answers)
        return router

    async def lease(self, request: Request) -> Response:
        """Hand over ready units, as Arrow, msgpack or JSON, as `Accept` says; the lease is in `x-stepwell-lease`."""
        spec = await self._read(request, LeaseSpec)
        until = time.monotonic() + min(spec.wait, self._config.lease_wait_seconds)
        try:
            lease = await unless_gone(request.receive, self._leased(spec, until, ending_of(request)))
        except ClientGone:
            return Response(status_code=CLIENT_CLOSED)
        kind, body = await asyncio.to_thread(_written, lease, request.headers.get("accept", ""))
        headers = {"x-stepwell-lease": lease.id, "x-stepwell-expires-at": repr(lease.expires_at)}
        return Response(body, headers=headers, media_type=kind)

    async def _leased(self, spec: LeaseSpec, until: float, ending: Ending) -> Lease:
        """In slices, so that nobody waits for a client that has left, or keeps a server from its end. What the client
        would have got is given back."""
        while True:
            left = until - time.monotonic()
            part = spec.model_copy(update={"wait": max(0.0, min(_SLICE, left))})
            leasing = asyncio.ensure_future(asyncio.to_thread(self._pool.lease, part))
            try:
                lease = await asyncio.shield(leasing)
            except asyncio.CancelledError:
                lease = await leasing
                await asyncio.to_thread(self._pool.release, lease.id)
                raise
            if lease.groups or left <= _SLICE or ending():
                return lease

    async def ack(self, lease_id: str) -> Response:
        """The units of the lease are consumed."""
        await asyncio.to_thread(self._pool.acknowledge, lease_id)
        return _done()

    async def nack(self, request: Request, lease_id: str) -> Response:
        """Give the units of the lease back at once; a `reason` is logged."""
        wire = await self._read(request, NackWire, NackWire())
        await asyncio.to_thread(self._pool.release, lease_id)
        if wire.reason:
            _log.warning("lease %s was given back: %r", lease_id, wire.reason)
        return _done()

    async def drop(self, request: Request, group_id: str) -> Response:
        """Give a group up: it never becomes ready, and counts under its `reason`."""
        wire = await self._read(request, DropWire)
        await asyncio.to_thread(self._pool.drop_group, group_id, wire.reason)
        return _done()

    async def nack_all(self, request: Request) -> Response:
        """Give back whatever a consumer still holds, such as one that was restarted and lost its leases."""
        wire = await self._read(request, ConsumerWire)
        return JSONResponse({"released": await asyncio.to_thread(self._pool.release_all, wire.consumer)})

    async def extend(self, request: Request, lease_id: str) -> Response:
        """Hold the units of the lease for longer."""
        wire = await self._read(request, ExtendWire)
        until = await asyncio.to_thread(self._pool.extend, lease_id, wire.seconds)
        return JSONResponse({"expires_at": until})

    async def heartbeat(self, request: Request, name: str) -> Response:
        """Say that a producer of steps is alive."""
        wire = await self._read(request, ExtendWire)
        await asyncio.to_thread(self._pool.heartbeat, name, wire.seconds)
        return _done()

    def consumption(self) -> Response:
        """What each consumer holds, has had and was never given."""
        return _json({"data": [_shape(one) for one in self._pool.consumption()]})

    def refills(self, channel: str | None = None) -> Response:
        """Groups that lack trajectories."""
        return _json({"data": [_shape(one) for one in self._pool.refills(channel)]})

    def trajectories(
        self, request: Request, limit: _Limit = 50, before: _Before = None, selection: str = ""
    ) -> Response:
        """Page through trajectories, newest first; `where` parameters, such as `where=min_reward=0.5`, select, or a
        `selection`: the name of a saved one, or one as JSON."""
        where = request.query_params.getlist("where")
        if where and selection:
            raise InvalidRequest("give either where or selection")
        wanted = self._named(selection) if selection else _understood(lambda: _selection(where)) if where else None
        page = self._pool.trajectories(wanted, before=before, limit=limit)
        return _page([{"cursor": cursor, **_shape(one)} for cursor, one in page], limit)

    def groups(self, channel: str | None = None, limit: _Limit = 50, before: _Before = None) -> Response:
        """Page through groups, newest first."""
        page = self._pool.groups(channel, before=before, limit=limit)
        return _page([{"cursor": cursor, **_shape(one)} for cursor, one in page], limit)

    def log(self, after: _Cursor = 0, limit: _Limit = 100) -> Response:
        """What was appended after a cursor, in order, token ids included."""
        page = self._pool.log(after=after, limit=limit)
        return _page([log_line(cursor, record) for cursor, record in page], limit)

    async def tail(self, request: Request, after: _Cursor | None = None) -> Response:
        """Server-sent events of what is appended; resumes behind `Last-Event-ID`, or `after`, else begins now."""
        resumed = request.headers.get("last-event-id", "")
        if resumed.isdecimal() and len(resumed) < 19:
            after = int(resumed)
        place = after if after is not None else (await asyncio.to_thread(self._pool.stats)).cursor
        records = self._appended(place, ending_of(request))
        return EventStream(records, _Lines(), {}, ping_seconds=self._config.ping_seconds)

    async def _appended(self, place: int, ending: Ending) -> AsyncGenerator[tuple[int, Record], None]:
        while not ending():
            page = await asyncio.to_thread(self._pool.log, after=place, limit=100)
            for cursor, record in page:
                yield cursor, record
                place = cursor
            if not page:
                await asyncio.sleep(_LOOK)

    def selections(self) -> Response:
        """Names of the saved selections."""
        return _json({"data": self._pool.selections()})

    def selection(self, name: str) -> Response:
        """One saved selection."""
        return _json(self._pool.selection(name).model_dump(mode="json"))

    async def save_selection(self, request: Request, name: str) -> Response:
        """Save a selection under a name."""
        wanted = await self._read(request, Selection)
        await asyncio.to_thread(self._pool.save_selection, name, wanted)
        return _done()

    def datasets(self) -> Response:
        """All versions of all datasets."""
        return _json({"data": [_dataset(one) for one in self._pool.datasets()]})

    async def freeze(self, request: Request) -> Response:
        """Make the next version of a dataset."""
        wire = await self._read(request, FreezeWire)
        made = await asyncio.to_thread(self._pool.freeze, wire.name, wire.selection, unit=wire.unit)
        return _json(_dataset(made))

    def _named(self, selection: str) -> Selection:
        if selection.startswith("{"):
            return _understood(lambda: Selection.model_validate_json(selection))
        return self._pool.selection(selection)

    async def _read(self, request: Request, kind: type[_C], empty: _C | None = None) -> _C:
        """What was sent; `empty`, if that may be nothing, is what nothing means."""
        body = await Body.read(request, self._config)
        if body.empty and empty is not None:
            return empty
        return _understood(lambda: kind.model_validate(body.value()))


class _Lines:
    """Writes the log as events; see `transport.Writing`."""

    def write(self, item: tuple[int, Record]) -> bytes:
        """With the cursor as the event's id, behind which a client may resume."""
        return f"id: {item[0]}\ndata: {json.dumps(log_line(*item))}\n\n".encode()

    def over(self) -> None:
        """The log never ends."""

    def left(self) -> None:
        """Nothing hangs on it."""

    def failed(self, error: Exception) -> bytes:
        """The client may resume behind the last event that it got."""
        return b"event: error\ndata: " + problem_json(logged(error, "the log's tail")) + b"\n\n"


def _written(lease: Lease, accept: str) -> tuple[str, bytes]:
    """The units in the first form that the client takes."""
    if _ARROW in accept:
        from stepwell.pool.arrow import to_arrow  # noqa: PLC0415 - pyarrow takes long to load, and few ask for it

        return _ARROW, to_arrow(step_arrays(lease.groups))
    if _MSGPACK in accept:
        return _MSGPACK, to_msgpack(step_arrays(lease.groups))
    groups = [
        {"info": _shape(group.info), "trajectories": [trajectory_shape(one) for one in group.trajectories]}
        for group in lease.groups
    ]
    answer = {"id": lease.id, "consumer": lease.consumer, "expires_at": lease.expires_at, "groups": groups}
    return "application/json", json.dumps(answer).encode()


def _selection(where: list[str]) -> Selection:
    pairs = [condition.partition("=") for condition in where]
    values: dict[str, Any] = {}
    for name, _, value in pairs:
        several = name in Selection.model_fields and isinstance(Selection.model_fields[name].default, tuple)
        values[name] = [*values.get(name, []), value] if several else value
    return Selection.model_validate(values)


def _understood(read: Callable[[], _T]) -> _T:
    try:
        return read()
    except ValidationError as error:
        raise InvalidRequest(explain(error)) from error


def _dataset(one: DatasetInfo) -> dict[str, Any]:
    return {**_shape(one), "manifest": one.manifest.model_dump(mode="json")}


def _shape(value: Any) -> dict[str, Any]:
    return dataclasses.asdict(value)


def _page(data: list[dict[str, Any]], limit: int) -> Response:
    """A page, and the cursor of the next: null if there is none."""
    return _json({"data": data, "next": data[-1]["cursor"] if len(data) == limit else None})


def _json(value: object) -> Response:
    return Response(json.dumps(value).encode(), media_type="application/json")


def _done() -> Response:
    return JSONResponse({"ok": True})
