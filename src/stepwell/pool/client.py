"""A pool in another process, reached through the gateway's routes: the writing half of the `Pool` protocol."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby
from typing import Any, Final

import httpx
import numpy as np

from stepwell.errors import Conflict, InvalidRecord, InvalidRequest, NotFound, PoolError, StepwellError
from stepwell.pool.base import Receipt
from stepwell.types import Annotation, GroupInfo, Record, Step, TrajectoryInfo

_ERRORS: Final[dict[str, type[StepwellError]]] = {
    "conflict": Conflict,
    "not_found": NotFound,
    "invalid_record": InvalidRecord,
    "invalid_request": InvalidRequest,
}


class PoolClient:
    """`append` and `put` of a `Pool` over HTTP. Calls are sent one after the other, in the order they were made."""

    def __init__(self, base_url: str, *, timeout: float = 60.0) -> None:
        """Talk to the gateway at `base_url`, such as `http://127.0.0.1:8000`; `timeout` in seconds per request."""
        transport = httpx.HTTPTransport(retries=2)  # of the connection only; records are idempotent by id anyway
        self._http = httpx.Client(base_url=base_url, timeout=timeout, transport=transport)
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pool-client")

    def append(self, records: Sequence[Record]) -> Future[list[Receipt]]:
        """As `Pool.append`, except that records before one that a lost connection hit may be stored.

        Raises:
            PoolError: (in the future) the gateway cannot be reached, or its pool failed.
        """
        return self._worker.submit(self._send_all, tuple(records))

    def put(self, *records: Record) -> None:
        """`append`, wait, and raise the first refusal."""
        for receipt in self.append(records).result():
            if receipt.error is not None:
                raise receipt.error

    def close(self) -> None:
        """Send what was appended and close the connection."""
        self._worker.shutdown(wait=True)
        self._http.close()

    def _send_all(self, records: tuple[Record, ...]) -> list[Receipt]:
        receipts: list[Receipt] = []
        for path, group in groupby(records, key=_path):
            run = list(group)
            calls = [[record] for record in run] if path.endswith("/end") else [run]  # an end has its own route
            for call in calls:
                receipts.extend(self._send(path, call))
        return receipts

    def _send(self, path: str, records: list[Record]) -> Iterator[Receipt]:
        body = _body(path, records)
        try:
            response = self._http.post(path, content=body, headers={"content-type": "application/json"})
            answer = response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise PoolError(f"the pool at {self._http.base_url} does not answer: {error!r}") from error
        if response.status_code in (200, 207):
            return (_receipt(record.id, verdict) for record, verdict in zip(records, answer["results"], strict=True))
        refusal = _error(answer["error"])
        if len(records) > 1 or isinstance(refusal, PoolError):
            raise refusal
        return iter([Receipt(id=records[0].id, cursor=None, error=refusal)])


def _path(record: Record) -> str:
    match record:
        case GroupInfo():
            return "/v1/groups"
        case TrajectoryInfo():
            return "/v1/trajectories"
        case Step():
            return "/v1/steps"
        case Annotation(kind="end"):
            return f"/v1/trajectories/{record.target_id}/end"
        case Annotation():
            return "/v1/rewards"
    raise InvalidRequest(f"a {type(record).__name__} cannot be sent to a pool in another process")


def _body(path: str, records: list[Record]) -> bytes:
    shapes = [_shape(record) for record in records]
    shape: Any = shapes[0] if path.endswith("/end") else {path.rpartition("/")[2]: shapes}
    return json.dumps(shape, default=np.ndarray.tolist).encode()


def _shape(record: Record) -> dict[str, Any]:
    shape = dataclasses.asdict(record)
    if not isinstance(record, Annotation):
        return shape
    kept = {name: shape[name] for name in ("id", "text", "created_at")}
    if record.kind == "end":
        return {**kept, "how": record.name}
    return {**kept, f"{record.target}_id": record.target_id, "name": record.name, "value": record.value}


def _receipt(record_id: str, verdict: dict[str, Any]) -> Receipt:
    error = verdict["error"] and _error(verdict["error"])
    return Receipt(
        id=record_id, cursor=verdict["cursor"], duplicate=verdict["status"] == "duplicate", error=error or None
    )


def _error(shape: dict[str, Any]) -> StepwellError:
    return _ERRORS.get(shape["code"], PoolError)(shape["message"])
