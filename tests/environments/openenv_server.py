"""An OpenEnv server of our own for tests, made with the real package: reach a number that the seed draws."""

from typing import Any

from openenv.core.env_server import http_server, interfaces, types


class Move(types.Action):
    """How far to go."""

    by: int


class Place(types.Observation):
    """Where one is."""

    text: str = ""


class Walk(types.State):
    """All there is to know."""

    place: int = 0
    goal: int = 0


class Walking(interfaces.Environment):
    """Done at the goal; 99 is a mistake of the environment."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._walk = Walk()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Place:
        self._walk = Walk(episode_id=episode_id, goal=3 + (seed or 0) % 5)
        return Place(text=f"Go to {self._walk.goal}.", done=False, reward=None)

    def step(self, action: Move, timeout_s: float | None = None, **_: Any) -> Place:
        if action.by == 99:
            raise RuntimeError("the bridge is broken")
        self._walk.step_count += 1
        self._walk.place += action.by
        there = self._walk.place >= self._walk.goal
        return Place(text=f"at {self._walk.place}", done=there, reward=float(there))

    @property
    def state(self) -> Walk:
        return self._walk


app = http_server.create_fastapi_app(Walking, Move, Place, max_concurrent_envs=64)
