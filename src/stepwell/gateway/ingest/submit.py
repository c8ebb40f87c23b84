"""What happens to submitted items: each is understood or refused by itself, and all that are well formed are stored."""

import asyncio
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stepwell.errors import Conflict, InvalidRecord, StepwellError
from stepwell.gateway.admission import Admission
from stepwell.gateway.config import GatewayConfig
from stepwell.gateway.ingest.bodies import Body
from stepwell.gateway.ingest.context import Context
from stepwell.gateway.ingest.views import Refusal, Verdict, Verdicts
from stepwell.gateway.ingest.wire import Item
from stepwell.gateway.observe import Meters
from stepwell.gateway.problems import explain, logged, problem_json, problem_of, problem_response
from stepwell.gateway.sessions import Sessions
from stepwell.gateway.transport import CLIENT_CLOSED, ClientGone
from stepwell.pool.base import Receipt
from stepwell.types import Annotation, GroupInfo, Record, Step, TrajectoryInfo

_OPENING: Final = ("groups", "trajectories")
"""Kinds of items by which work begins; what else may open a trajectory tells of what has happened already."""
_LONG_BODY: Final = 65_536
"""Bytes from which on a body is understood in a thread, so that streams are not held up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One item, understood or refused."""

    id: str
    """Empty if it has none and was refused."""
    records: tuple[Record, ...] = ()
    opener: Record | None = None
    error: StepwellError | None = None

    @property
    def all_records(self) -> tuple[Record, ...]:
        """In the order in which they are stored."""
        return (self.opener, *self.records) if self.opener else self.records

    def verdict(self, receipts: Sequence[Receipt]) -> Receipt:
        """The item's receipt, of those of `all_records`."""
        if self.error is not None:
            return Receipt(id=self.id, cursor=None, error=self.error)
        if self.opener and receipts[0].error is not None and not isinstance(receipts[0].error, Conflict):
            return dataclasses.replace(receipts[0], id=self.id)
        own = receipts[1:] if self.opener else receipts
        return next((receipt for receipt in own if receipt.error is not None), own[0])


class Intake:
    """Stores submissions, and tells the sessions which trajectories somebody else wrote to."""

    def __init__(self, context: Context, sessions: Sessions, admission: Admission) -> None:
        """Check items against `context` and store them in its pool, new work only if `admission` lets it begin."""
        self._context = context
        self._admission = admission
        self._sessions = sessions

    def understood(self, wire: type[Item], item: object) -> Submission:
        """An item of the kind `wire`; refused, with the reason, if it is none. May block."""
        given_id = item.get("id") if isinstance(item, dict) else None
        item_id = given_id if isinstance(given_id, str) else ""
        try:
            read = wire.model_validate(item)
            records = read.records(self._context)
            return Submission(id=records[0].id, records=records, opener=read.opener())
        except ValidationError as error:
            return Submission(id=item_id, error=InvalidRecord(explain(error)))
        except StepwellError as error:
            return Submission(id=item_id, error=error)

    async def admit(self, submissions: Sequence[Submission]) -> None:
        """Before they are stored: work that begins with them may begin now. Raises RateLimited."""
        if any(_begins(record) for item in submissions for record in item.all_records):
            await self._admission.admit()

    async def store(self, submissions: Sequence[Submission]) -> Verdicts:
        """Store what is well formed; one verdict per item, in order, those of refused items included.

        Raises:
            StepwellError: the only item was refused.
            PoolError: the storage failed; nothing is stored.
        """
        parts = [item.all_records for item in submissions]
        records = [record for part in parts for record in part]
        pool = self._context.pool
        stored = await asyncio.shield(asyncio.wrap_future(pool.append(records))) if records else []
        remaining = iter(stored)
        receipts = [
            item.verdict([next(remaining) for _ in part]) for item, part in zip(submissions, parts, strict=True)
        ]
        for trajectory_id in _touched(records, stored):
            self._sessions.forget(trajectory_id)
        refusals = [receipt.error for receipt in receipts if receipt.error is not None]
        if refusals and len(receipts) == 1:
            raise refusals[0]
        return Verdicts(results=[_verdict(receipt) for receipt in receipts])


def told(verdicts: Verdicts) -> Response:
    """The answer to a submission: 207 if some of the items were refused."""
    refused = any(verdict.error for verdict in verdicts.results)
    return Response(verdicts.model_dump_json(), 207 if refused else 200, media_type="application/json")


class SubmitEndpoint:
    """`POST` of items of one kind, alone or in a list; an ASGI application."""

    def __init__(self, intake: Intake, meters: Meters, config: GatewayConfig, kind: str, wire: type[Item]) -> None:
        """Take items of `kind`, each a `wire`."""
        self._intake = intake
        self._meters = meters
        self._config = config
        self._kind = kind
        self._wire = wire

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, also with what went wrong."""
        try:
            response = await self.answer(Request(scope, receive))
        except ClientGone:
            response = Response(status_code=CLIENT_CLOSED)
        except Exception as error:
            problem = logged(error, f"{scope['method']} {scope['path']}")
            self._meters.item_with(self._kind, problem.code).inc()
            response = problem_response(problem, problem_json(problem))
        await response(scope, receive, send)

    async def answer(self, request: Request) -> Response:
        """The answer to a request. Raises as `Body.read`, `Body.items`, `Intake.admit` and `Intake.store`."""
        body = await Body.read(request, self._config)
        aside = self._wire.looks or body.size > _LONG_BODY
        items = await asyncio.to_thread(self._read, body) if aside else self._read(body)
        if self._kind in _OPENING:
            await self._intake.admit(items)
        verdicts = await self._intake.store(items)
        for verdict in verdicts.results:
            self._meters.item_with(self._kind, verdict.error.code if verdict.error else verdict.status).inc()
        return told(verdicts)

    def _read(self, body: Body) -> list[Submission]:
        return [self._intake.understood(self._wire, item) for item in body.items(self._kind)]


def _begins(record: Record) -> bool:
    """Whether it opens work that does not belong to any that was let in before."""
    return isinstance(record, GroupInfo) or (isinstance(record, TrajectoryInfo) and record.group_id is None)


def _touched(records: Sequence[Record], receipts: Sequence[Receipt]) -> set[str]:
    """Trajectories of which the gateway may remember something that is not so any more."""
    touched = set()
    for record, receipt in zip(records, receipts, strict=True):
        if receipt.error is not None or receipt.duplicate:
            continue
        match record:
            case Step():
                touched.add(record.trajectory_id)
            case TrajectoryInfo():
                touched.add(record.id)
            case Annotation(kind="end"):
                touched.add(record.target_id)
            case _:
                pass
    return touched


def _verdict(receipt: Receipt) -> Verdict:
    if receipt.error is not None:
        problem = problem_of(receipt.error)
        refusal = Refusal(code=problem.code, message=problem.message)
        return Verdict(id=receipt.id, status="refused", cursor=None, error=refusal)
    status: Literal["stored", "duplicate"] = "duplicate" if receipt.duplicate else "stored"
    return Verdict(id=receipt.id, status=status, cursor=receipt.cursor, error=None)
