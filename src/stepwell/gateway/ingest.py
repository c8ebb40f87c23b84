"""The white-box door: programs that run their own engine submit steps, groups, rewards and ends, and read them back."""

import asyncio
import dataclasses
from collections.abc import Iterable
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import ValidationError

from stepwell.errors import InvalidRecord, InvalidRequest
from stepwell.gateway.problems import explain, problem_of
from stepwell.gateway.sessions import Sessions
from stepwell.gateway.transport import read_json
from stepwell.gateway.wire import EndWire, GroupWire, RewardWire, StepWire, TrajectoryWire, trajectory_json
from stepwell.pool.base import Pool, Receipt
from stepwell.types import Annotation, Record, Step

_Wire = type[GroupWire] | type[TrajectoryWire] | type[StepWire] | type[RewardWire]
_KINDS: Final[dict[str, _Wire]] = {
    "groups": GroupWire,
    "trajectories": TrajectoryWire,
    "steps": StepWire,
    "rewards": RewardWire,
}


class Ingest:
    """The routes below `/v1` that write to and read from the pool."""

    def __init__(self, pool: Pool, sessions: Sessions, max_body_bytes: int) -> None:
        """Write to `pool`, and tell `sessions` which trajectories somebody else wrote to."""
        self._pool = pool
        self._sessions = sessions
        self._max_body_bytes = max_body_bytes

    def router(self) -> APIRouter:
        """All routes of this door."""
        router = APIRouter(prefix="/v1")
        for kind in _KINDS:
            router.add_api_route(f"/{kind}", self._submit_route(kind), methods=["POST"], name=kind)
        router.add_api_route("/trajectories/{trajectory_id}/end", self.end, methods=["POST"])
        router.add_api_route("/trajectories/{trajectory_id}", self.trajectory, methods=["GET"])
        router.add_api_route("/stats", self.stats, methods=["GET"])
        return router

    def _submit_route(self, kind: str) -> Any:
        async def submit(request: Request) -> JSONResponse:
            body = await read_json(request, self._max_body_bytes, allow_nan=True)
            items = body.get(kind) if isinstance(body, dict) and kind in body else [body]
            if not isinstance(items, list):
                raise InvalidRequest(f"{kind} must be a list")
            return await self._append([_parse(_KINDS[kind], item) for item in items])

        return submit

    async def end(self, request: Request, trajectory_id: str) -> JSONResponse:
        """End a trajectory: `{"how": "terminated"}`."""
        body = await read_json(request, self._max_body_bytes)
        try:
            record = EndWire.model_validate(body).record(trajectory_id)
        except ValidationError as error:
            raise InvalidRequest(explain(error)) from error
        return await self._append([record])

    def trajectory(self, trajectory_id: str) -> JSONResponse:
        """One trajectory with its steps, token ids included."""
        return JSONResponse(trajectory_json(self._pool.trajectory(trajectory_id)))

    def stats(self) -> JSONResponse:
        """Counts of everything in the pool."""
        stats = self._pool.stats()
        shape = dataclasses.asdict(stats)
        return JSONResponse({**shape, "trajectories_by_status": dict(stats.trajectories_by_status)})

    async def _append(self, parsed: list[Record | Receipt]) -> JSONResponse:
        """Store what is well formed; one verdict per item, in order, those of refused items included.

        Raises:
            StepwellError: the only item was refused.
            PoolError: the storage failed; nothing is stored.
        """
        records = [item for item in parsed if not isinstance(item, Receipt)]
        stored = await asyncio.shield(asyncio.wrap_future(self._pool.append(records))) if records else []
        remaining = iter(stored)
        receipts = [item if isinstance(item, Receipt) else next(remaining) for item in parsed]
        for trajectory_id in _touched(records):
            self._sessions.forget(trajectory_id)
        refusals = [receipt.error for receipt in receipts if receipt.error is not None]
        if refusals and len(receipts) == 1:
            raise refusals[0]
        return JSONResponse({"results": [_verdict(receipt) for receipt in receipts]}, 207 if refusals else 200)


def _parse(wire: _Wire, item: Any) -> Record | Receipt:
    """The item as a record, or the refusal of it."""
    given_id = item.get("id") if isinstance(item, dict) else None
    item_id = given_id if isinstance(given_id, str) else ""
    try:
        return wire.model_validate(item).record()
    except ValidationError as error:
        return Receipt(id=item_id, cursor=None, error=InvalidRecord(explain(error)))
    except InvalidRecord as error:
        return Receipt(id=item_id, cursor=None, error=error)


def _touched(records: Iterable[Record]) -> set[str]:
    steps = {record.trajectory_id for record in records if isinstance(record, Step)}
    return steps | {record.target_id for record in records if isinstance(record, Annotation) and record.kind == "end"}


def _verdict(receipt: Receipt) -> dict[str, object]:
    if receipt.error is not None:
        problem = problem_of(receipt.error)
        error = {"code": problem.code, "message": problem.message}
        return {"id": receipt.id, "status": "refused", "cursor": None, "error": error}
    status = "duplicate" if receipt.duplicate else "stored"
    return {"id": receipt.id, "status": status, "cursor": receipt.cursor, "error": None}
