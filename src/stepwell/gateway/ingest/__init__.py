"""The white-box door: programs submit steps, groups, rewards, ends, feedback and events, and read them back."""

import dataclasses
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError

from stepwell.errors import InvalidRequest
from stepwell.gateway.admission import Admission
from stepwell.gateway.callers import KEY_PREFIX
from stepwell.gateway.config import GatewayConfig
from stepwell.gateway.ingest.bodies import Body, described
from stepwell.gateway.ingest.context import Context
from stepwell.gateway.ingest.feedback import EventWire, FeedbackWire
from stepwell.gateway.ingest.submit import Intake, Submission, SubmitEndpoint, told
from stepwell.gateway.ingest.views import (
    SessionAnswer,
    StatsView,
    TrajectoryView,
    TreeView,
    Verdicts,
    trajectory_json,
    tree_shape,
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
from stepwell.gateway.observe import Meters
from stepwell.gateway.problems import explain
from stepwell.gateway.sessions import Sessions
from stepwell.prefix_tree.pack import MICRO_BATCH_TOKENS, Merging
from stepwell.prefix_tree.savings import trained_rows

_KINDS: Final[dict[str, tuple[type[Item], str]]] = {
    "groups": (GroupWire, "Open groups: trajectories of one task, to be compared with each other."),
    "trajectories": (TrajectoryWire, "Open trajectories."),
    "steps": (StepWire, "Append steps that another engine sampled."),
    "rewards": (RewardWire, "Give reward parts to steps or trajectories, at once or days later."),
    "curation": (CurationWire, "Give verdicts, tags and notes to steps or trajectories."),
    "feedback": (FeedbackWire, "Say what a person thinks of an answer or a conversation."),
    "events": (EventWire, "Record the turns of a live product; an unknown conversation becomes a trajectory."),
}
_Budget = Annotated[int, Query(ge=1)]
_W = TypeVar("_W", bound=Wire)


class Ingest:
    """The routes below `/v1` that write to and read from the pool."""

    def __init__(
        self,
        context: Context,
        sessions: Sessions,
        admission: Admission,
        meters: Meters,
        config: GatewayConfig,
        keys: KeyRing | None,
    ) -> None:
        """Check items against `context` and store them in its pool.

        Args:
            context: The model that is served, and the pool.
            sessions: Told which trajectories somebody else wrote to.
            admission: Asked before something new begins.
            meters: Count what becomes of items.
            config: Limits of bodies.
            keys: Mint the keys of sessions; None: keys that prove nothing.
        """
        self._pool = context.pool
        self._config = config
        self._keys = keys
        self._intake = Intake(context, sessions, admission)
        self.endpoints = {
            f"/v1/{kind}": SubmitEndpoint(self._intake, meters, config, kind, wire)
            for kind, (wire, _) in _KINDS.items()
        }
        """Those that take items, by their paths: as applications they cost half of what they cost as routes."""

    def router(self) -> APIRouter:
        """All routes of this door."""
        router = APIRouter(prefix="/v1", tags=["record and read"])
        for kind, (wire, does) in _KINDS.items():
            router.add_api_route(
                f"/{kind}",
                _route(self.endpoints[f"/v1/{kind}"]),
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
        add("/groups/{group_id}/tree", self.tree, methods=["GET"], response_model=TreeView)
        add("/stats", self.stats, methods=["GET"], response_model=StatsView)
        return router

    async def end(self, request: Request, trajectory_id: str) -> Response:
        """End a trajectory: complete it (`terminated`), cut it (`truncated`), or abort it (`failed`)."""
        wire = await self._only(request, EndWire)
        record = wire.record(trajectory_id)
        return told(await self._intake.store([Submission(id=record.id, records=(record,))]))

    async def session(self, request: Request) -> Response:
        """Open a trajectory, and say how to call in it."""
        info = (await self._only(request, SessionWire)).record()
        opened = [Submission(id=info.id, records=(info,))]
        await self._intake.admit(opened)
        await self._intake.store(opened)
        base = f"{str(request.base_url).rstrip('/')}/t/{info.id}"
        key = self._keys.session_key(info.id) if self._keys else KEY_PREFIX + info.id
        answer = SessionAnswer(
            trajectory_id=info.id, api_key=key, openai_base_url=f"{base}/v1", anthropic_base_url=base
        )
        return JSONResponse(answer.model_dump())

    def trajectory(self, trajectory_id: str) -> Response:
        """Read one trajectory with its steps, token ids included, and what is known about them."""
        return Response(trajectory_json(self._pool.trajectory(trajectory_id)), media_type="application/json")

    def tree(self, group_id: str, budget: _Budget = MICRO_BATCH_TOKENS, tree: Merging = "auto") -> Response:
        """Say what merging shared prefixes saves when a group is trained on, with `budget` tokens to a pass and `tree`
        as in the learner's settings; and how the rows of all its trainable steps hang together."""
        rows = trained_rows(self._pool.group(group_id).trajectories)
        return JSONResponse(tree_shape(rows, budget, tree))

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


def _route(endpoint: SubmitEndpoint) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    """An endpoint as the framework wants it, for other methods and for the documentation."""

    async def submit(request: Request) -> Response:
        return await endpoint.answer(request)

    return submit
