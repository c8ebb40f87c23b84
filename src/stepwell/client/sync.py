"""The client for ordinary code."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Concatenate, ParamSpec, TypeVar

from stepwell.client import requests
from stepwell.client.consumer import Consumer
from stepwell.client.requests import Event, Feedback, only
from stepwell.client.session import Place, failure, lost
from stepwell.errors import StepwellError
from stepwell.pool.base import PoolStats, Receipt
from stepwell.types import Annotation, End, GroupInfo, Record, Trajectory, TrajectoryInfo

P = ParamSpec("P")
R = TypeVar("R")


class Session(Place):
    """A trajectory under way; `Client.session` makes it."""

    def __init__(self, client: "Client", opened: requests.Opened) -> None:
        """Use `client` for all but the agent's calls."""
        super().__init__(client.base_url, opened)
        self._client = client

    def reward(self, value: float, *, name: str = "reward", text: str = "") -> None:
        """Give the trajectory a reward part."""
        self._client.reward(value, trajectory_id=self.trajectory_id, name=name, text=text)

    def end(self, how: End = "terminated", why: str = "") -> None:
        """End it now, in this way; else it ends as `terminated` with its block."""
        self._client.end(self.trajectory_id, how, why)
        self.ended = True


class Client(Consumer):
    """Talks to one gateway; may be used from many threads.

    Whatever is stored gets its id here, before it is sent, so a request that fails on its way is sent again and nothing
    is stored twice. What the gateway refuses is raised as the error of `stepwell.errors` that it is (`Conflict`,
    `NotFound`, `InvalidRecord`, `Unauthorized`, …); one that cannot be reached is `Unavailable`.
    """

    def __enter__(self) -> "Client":
        """The client itself."""
        return self

    def __exit__(self, *raised: object) -> None:
        """Close the connections."""
        self.close()

    def open_group(self, task_id: str, size: int, *, channel: str = "default", deadline: float | None = None) -> str:
        """Open a group of `size` trajectories of one task, for the training run `channel`; gives its id.

        `deadline`: Unix time in seconds by which they should have ended.
        """
        group = GroupInfo(task_id=task_id, size=size, channel=channel, deadline=deadline)
        only(self.submit([group]))
        return group.id

    def open_trajectory(self, *, group_id: str | None = None, task_id: str = "", agent: str = "") -> str:
        """Open a trajectory for steps of your own; gives its id. `session` is for an agent that calls the gateway."""
        info = TrajectoryInfo(group_id=group_id, task_id=task_id, agent=agent)
        only(self.submit([info]))
        return info.id

    def submit(self, records: Sequence[Record]) -> list[Receipt]:
        """Store records in order, such as many steps; one receipt each, with the `error` of one that is refused.

        If it raises, those before the record that failed may be stored: submit all of them again.
        """
        return [receipt for call in requests.submissions(records) for receipt in self.send(call)]

    def reward(
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
        only(self.submit([note]))

    def end(self, trajectory_id: str, how: End = "terminated", why: str = "") -> None:
        """End a trajectory: complete it (`terminated`), cut it (`truncated`), or abort it (`failed`)."""
        only(self.submit([Annotation.end(trajectory_id, how, why)]))

    def feedback(self, item: Feedback) -> None:
        """Store what a person thinks of an answer or a conversation."""
        only(self.send(requests.feedback(item)))

    def events(self, *items: Event) -> list[Receipt]:
        """Store what happened in a live product; one receipt each, with the `error` of one that is refused."""
        return self.send(requests.events(items)) if items else []

    def trajectory(self, trajectory_id: str) -> Trajectory:
        """Read a trajectory with its steps and what is known about them."""
        return self.send(requests.trajectory(trajectory_id))

    def stats(self) -> PoolStats:
        """Count everything in the pool."""
        return self.send(requests.stats())

    @contextmanager
    def session(self, *, group_id: str | None = None, task_id: str = "", agent: str = "") -> Iterator[Session]:
        """A trajectory for as long as the block runs: terminated at its end, failed if it raises.

        Inside, point any client at `session.base_url` (or `anthropic_base_url`), with `session.api_key` as its key.
        """
        info = TrajectoryInfo(group_id=group_id, task_id=task_id, agent=agent)
        session = Session(self, self.send(requests.session(info)))
        try:
            yield session
        except BaseException as error:
            self._abort(session, error)
            raise
        if not session.ended:
            session.end()

    def recorded(
        self, *, group_id: str | None = None, task_id: str = "", agent: str = "", rewarded: bool = False
    ) -> Callable[[Callable[Concatenate[Session, P], R]], Callable[P, R]]:
        """Decorate a function so that each of its calls is a session, which it gets as its first argument.

        `rewarded`: the number that it returns is the reward. `agent`: by default the function's name.
        """

        def decorate(function: Callable[Concatenate[Session, P], R]) -> Callable[P, R]:
            @functools.wraps(function)
            def call(*args: P.args, **kwargs: P.kwargs) -> R:
                with self.session(group_id=group_id, task_id=task_id, agent=agent or function.__name__) as session:
                    result = function(session, *args, **kwargs)
                    if rewarded:
                        session.reward(requests.number(result))
                    return result

            return call

        return decorate

    def _abort(self, session: Session, error: BaseException) -> None:
        if session.ended:
            return
        try:
            only(self.submit([failure(session.trajectory_id, error)]))
        except StepwellError as trouble:
            lost(session.trajectory_id, trouble)
