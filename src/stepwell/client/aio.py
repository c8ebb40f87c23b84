"""The client for asyncio: `sync`, word for word, with `await`."""

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Concatenate, ParamSpec, TypeVar

from stepwell.client import requests
from stepwell.client.aio_consumer import AsyncConsumer
from stepwell.client.requests import Event, Feedback, only
from stepwell.client.session import Place, failure, lost
from stepwell.errors import StepwellError
from stepwell.pool.base import PoolStats, Receipt
from stepwell.types import Annotation, End, GroupInfo, Record, Trajectory, TrajectoryInfo

P = ParamSpec("P")
R = TypeVar("R")


class AsyncSession(Place):
    """A trajectory under way; `AsyncClient.session` makes it."""

    def __init__(self, client: "AsyncClient", opened: requests.Opened) -> None:
        """Use `client` for all but the agent's calls."""
        super().__init__(client.base_url, opened)
        self._client = client

    async def reward(self, value: float, *, name: str = "reward", text: str = "") -> None:
        """Give the trajectory a reward part."""
        await self._client.reward(value, trajectory_id=self.trajectory_id, name=name, text=text)

    async def end(self, how: End = "terminated", why: str = "") -> None:
        """End it now, in this way; else it ends as `terminated` with its block."""
        await self._client.end(self.trajectory_id, how, why)
        self.ended = True


class AsyncClient(AsyncConsumer):
    """Talks to one gateway; may be used from many tasks of one event loop.

    Whatever is stored gets its id here, before it is sent, so a request that fails on its way is sent again and nothing
    is stored twice. What the gateway refuses is raised as the error of `stepwell.errors` that it is (`Conflict`,
    `NotFound`, `InvalidRecord`, `Unauthorized`, …); one that cannot be reached is `Unavailable`.
    """

    async def __aenter__(self) -> "AsyncClient":
        """The client itself."""
        return self

    async def __aexit__(self, *raised: object) -> None:
        """Close the connections."""
        await self.close()

    async def open_group(
        self, task_id: str, size: int, *, channel: str = "default", deadline: float | None = None
    ) -> str:
        """Open a group of `size` trajectories of one task, for the training run `channel`; gives its id.

        `deadline`: Unix time in seconds by which they should have ended.
        """
        group = GroupInfo(task_id=task_id, size=size, channel=channel, deadline=deadline)
        only(await self.submit([group]))
        return group.id

    async def open_trajectory(self, *, group_id: str | None = None, task_id: str = "", agent: str = "") -> str:
        """Open a trajectory for steps of your own; gives its id. `session` is for an agent that calls the gateway."""
        info = TrajectoryInfo(group_id=group_id, task_id=task_id, agent=agent)
        only(await self.submit([info]))
        return info.id

    async def submit(self, records: Sequence[Record]) -> list[Receipt]:
        """Store records in order, such as many steps; one receipt each, with the `error` of one that is refused.

        If it raises, those before the record that failed may be stored: submit all of them again.
        """
        return [receipt for call in requests.submissions(records) for receipt in await self.send(call)]

    async def reward(
        self,
        value: float,
        *,
        trajectory_id: str | None = None,
        step_id: str | None = None,
        name: str = "reward",
        text: str = "",
    ) -> None:
        """Give a trajectory or a step the reward part `name`; the newest value of a part holds."""
        note = requests.reward(value, trajectory_id=trajectory_id, step_id=step_id, name=name, text=text)
        only(await self.submit([note]))

    async def end(self, trajectory_id: str, how: End = "terminated", why: str = "") -> None:
        """End a trajectory: complete it (`terminated`), cut it (`truncated`), or abort it (`failed`)."""
        only(await self.submit([Annotation.end(trajectory_id, how, why)]))

    async def feedback(self, item: Feedback) -> None:
        """Store what a person thinks of an answer or a conversation."""
        only(await self.send(requests.feedback(item)))

    async def events(self, *items: Event) -> list[Receipt]:
        """Store what happened in a live product; one receipt each, with the `error` of one that is refused."""
        return await self.send(requests.events(items)) if items else []

    async def trajectory(self, trajectory_id: str) -> Trajectory:
        """Read a trajectory with its steps and what is known about them."""
        return await self.send(requests.trajectory(trajectory_id))

    async def stats(self) -> PoolStats:
        """Count everything in the pool."""
        return await self.send(requests.stats())

    @asynccontextmanager
    async def session(
        self, *, group_id: str | None = None, task_id: str = "", agent: str = ""
    ) -> AsyncIterator[AsyncSession]:
        """A trajectory for as long as the block runs: terminated at its end, failed if it raises.

        Inside, point any client at `session.base_url` (or `anthropic_base_url`), with `session.api_key` as its key.
        """
        info = TrajectoryInfo(group_id=group_id, task_id=task_id, agent=agent)
        session = AsyncSession(self, await self.send(requests.session(info)))
        try:
            yield session
        except BaseException as error:
            await self._abort(session, error)
            raise
        if not session.ended:
            await session.end()

    def recorded(
        self, *, group_id: str | None = None, task_id: str = "", agent: str = "", rewarded: bool = False
    ) -> Callable[[Callable[Concatenate[AsyncSession, P], Awaitable[R]]], Callable[P, Awaitable[R]]]:
        """Decorate a function so that each of its calls is a session, which it gets as its first argument.

        `rewarded`: the number that it returns is the reward. `agent`: by default the function's name.
        """

        def decorate(function: Callable[Concatenate[AsyncSession, P], Awaitable[R]]) -> Callable[P, Awaitable[R]]:
            @functools.wraps(function)
            async def call(*args: P.args, **kwargs: P.kwargs) -> R:
                async with self.session(
                    group_id=group_id, task_id=task_id, agent=agent or function.__name__
                ) as session:
                    result = await function(session, *args, **kwargs)
                    if rewarded:
                        await session.reward(requests.number(result))
                    return result

            return call

        return decorate

    async def _abort(self, session: AsyncSession, error: BaseException) -> None:
        if session.ended:
            return
        try:
            only(await self.submit([failure(session.trajectory_id, error)]))
        except StepwellError as trouble:
            lost(session.trajectory_id, trouble)
