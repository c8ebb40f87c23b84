"""The white-box door: programs submit steps, groups, rewards, ends, feedback and events, and read them back."""

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError

from stepwell.errors import Conflict, InvalidRecord, InvalidRequest, StepwellError
from stepwell.gateway.callers import KEY_PREFIX
from stepwell.gateway.config import GatewayConfig
from stepwell.gateway.ingest.bodies import Body, described
from stepwell.gateway.ingest.context import Context
from stepwell.gateway.ingest.feedback import EventWire, FeedbackWire
from stepwell.gateway.ingest.views import (
    Refusal,
    SessionAnswer,
    StatsView,
    TrajectoryView,
    Verdict,
    Verdicts,
    trajectory_json,
)
from stepwell.gateway.ingest.wire import (
    CurationWire,
    EndWire,
    GroupWire,
    Item,
    RewardWire,
    SessionWire,
    StepWire,
    TrajectoryWire,
    Wire,
)
from stepwell.gateway.keys import KeyRing
from stepwell.gateway.problems import explain, problem_of
from stepwell.gateway.sessions import Sessions
from stepwell.pool.base import Receipt
from stepwell.types import Annotation, Record, Step, TrajectoryInfo

_KINDS: Final[dict[str, tuple[type[Item], str]]] = {
    "groups": (GroupWire, "Open groups: trajectories of one task, to be compared with each other."),
    "trajectories": (TrajectoryWire, "Open trajectories."),
    "steps": (StepWire, "Append steps that another engine sampled."),
    "rewards": (RewardWire, "Give reward parts to steps or trajectories, at once or days later."),
    "curation": (CurationWire, "Give verdicts, tags and notes to steps or trajectories."),
    "feedback": (FeedbackWire, "Say what a person thinks of an answer or a conversation."),
    "events": (EventWire, "Record the turns of a live product; an unknown conversation becomes a trajectory."),
}
_W = TypeVar("_W", bound=Wire)
_Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Submission:
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


class Ingest:
    """The routes below `/v1` that write to and read from the pool."""

    def __init__(self, context: Context, sessions: Sessions, config: GatewayConfig, keys: KeyRing | None) -> None:
        """Check items against `context` and store them in its pool.

        Args:
            context: The model that is served, and the pool.
            sessions: Told which trajectories somebody else wrote to.
            config: Limits of bodies.
            keys: Mint the keys of sessions; None: keys that prove nothing.
        """
        self._context = context
        self._pool = context.pool
        self._sessions = sessions
        self._config = config
        self._keys = keys

    def router(self) -> APIRouter:
        """All routes of this door."""
        router = APIRouter(prefix="/v1", tags=["record and read"])
        for kind, (wire, does) in _KINDS.items():
            router.add_api_route(
                f"/{kind}",
                self._submit_route(kind, wire),
                methods=["POST"],
                name=kind,
                summary=does,
                response_model=Verdicts,
                responses={207: {"model": Verdicts, "description": "Some items were refused."}},
                openapi_extra=described(wire.__name__, kind),
            )
        add = router.add_api_route
        end, session = described(EndWire.__name__), described(SessionWire.__name__)
        add(
            "/trajectories/{trajectory_id}/end",
            self.end,
            methods=["POST"],
            response_model=Verdicts,
            openapi_extra=end,
        )
        add("/sessions", self.session, methods=["POST"], response_model=SessionAnswer, openapi_extra=session)
        add("/trajectories/{trajectory_id}", self.trajectory, methods=["GET"], response_model=TrajectoryView)
        add("/stats", self.stats, methods=["GET"], response_model=StatsView)
        return router

    def _submit_route(self, kind: str, wire: type[Item]) -> _Endpoint:
        def understood(body: Body) -> list[_Submission]:
            return [self._submission(wire, item) for item in body.items(kind)]

        async def submit(request: Request) -> Response:
            body = await Body.read(request, self._config)
            # In a thread: a body may be megabytes long, and an item may ask for a look into the pool.
            return await self._append(await asyncio.to_thread(understood, body))

        return submit

    async def end(self, request: Request, trajectory_id: str) -> Response:
        """End a trajectory: complete it (`terminated`), cut it (`truncated`), or abort it (`failed`)."""
        wire = await self._only(request, EndWire)
        record = wire.record(trajectory_id)
        return await self._append([_Submission(id=record.id, records=(record,))])

    async def session(self, request: Request) -> Response:
        """Open a trajectory, and say how to call in it."""
        info = (await self._only(request, SessionWire)).record()
        await self._append([_Submission(id=info.id, records=(info,))])
        base = f"{str(request.base_url).rstrip('/')}/t/{info.id}"
        key = self._keys.session_key(info.id) if self._keys else KEY_PREFIX + info.id
        answer = SessionAnswer(
            trajectory_id=info.id, api_key=key, openai_base_url=f"{base}/v1", anthropic_base_url=base
        )
        return JSONResponse(answer.model_dump())

    def trajectory(self, trajectory_id: str) -> Response:
        """Read one trajectory with its steps, token ids included, and what is known about them."""
        return Response(trajectory_json(self._pool.trajectory(trajectory_id)), media_type="application/json")

    def stats(self) -> Response:
        """Count everything in the pool."""
        stats = self._pool.stats()
        shape = dataclasses.asdict(stats)
        tables = {name: dict(getattr(stats, name)) for name in ("groups_dropped", "trajectories_by_status")}
        return JSONResponse({**shape, **tables})

    async def _only(self, request: Request, wire: type[_W]) -> _W:
        """The one object that a body has to be. Raises InvalidRequest."""
        body = await Body.read(request, self._config)
        try:
            return wire.model_validate(body.value())
        except ValidationError as error:
            raise InvalidRequest(explain(error)) from error

    def _submission(self, wire: type[Item], item: object) -> _Submission:
        given_id = item.get("id") if isinstance(item, dict) else None
        item_id = given_id if isinstance(given_id, str) else ""
        try:
            read = wire.model_validate(item)
            records = read.records(self._context)
            return _Submission(id=records[0].id, records=records, opener=read.opener())
        except ValidationError as error:
            return _Submission(id=item_id, error=InvalidRecord(explain(error)))
        except StepwellError as error:
            return _Submission(id=item_id, error=error)

    async def _append(self, submissions: list[_Submission]) -> Response:
        """Store what is well formed; one verdict per item, in order, those of refused items included.

        Raises:
            StepwellError: the only item was refused.
            PoolError: the storage failed; nothing is stored.
        """
        parts = [item.all_records for item in submissions]
        records = [record for part in parts for record in part]
        stored = await asyncio.shield(asyncio.wrap_future(self._pool.append(records))) if records else []
        remaining = iter(stored)
        receipts = [
            item.verdict([next(remaining) for _ in part]) for item, part in zip(submissions, parts, strict=True)
        ]
        for trajectory_id in _touched(records, stored):
            self._sessions.forget(trajectory_id)
        refusals = [receipt.error for receipt in receipts if receipt.error is not None]
        if refusals and len(receipts) == 1:
            raise refusals[0]
        answer = Verdicts(results=[_verdict(receipt) for receipt in receipts])
        return JSONResponse(answer.model_dump(), 207 if refusals else 200)


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
