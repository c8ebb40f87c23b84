"""Environments of Gymnasium that speak text, for tests. Imported by Gymnasium when one is made."""

import random
from typing import Any

import gymnasium
import numpy as np


class Climb(gymnasium.Env[str, str]):
    """`up` climbs by one or two, by chance; the top is 5. Anything else slips by one."""

    observation_space = gymnasium.spaces.Text(100)
    action_space = gymnasium.spaces.Text(4)
    height: Any = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.height = int(self.np_random.integers(2))
        return f"You are at {self.height}.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.height += int(self.np_random.integers(1, 3)) if action == "up" else -1
        return f"You are at {self.height}.", float(self.height >= 5), bool(self.height >= 5), False, {}


class Rooted(Climb):
    """Cannot be copied."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "Rooted":
        raise TypeError("no copies")


class Entangled(Climb):
    """Its copies share where they are."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "Entangled":
        return self


class Shared(Climb):
    """Draws from generators that belong to all."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        random.seed(seed)
        np.random.seed(seed)
        self.height = 0
        return "You are at 0.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        drawn = random.random() + np.random.random()
        return f"You drew {drawn}.", 0.0, False, False, {}


class Broken(Climb):
    """Fails at `fall`, and pays nothing that is a number at `pay`."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if action == "fall":
            raise RuntimeError("the rope is torn")
        reward = float("nan") if action == "pay" else 0.0
        return "", reward, False, False, {}


class Numbers(gymnasium.Env[int, int]):
    """Counts its actions, which are numbers, in numbers."""

    observation_space = gymnasium.spaces.Discrete(100)
    action_space = gymnasium.spaces.Discrete(100)
    count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        self.count = 0
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.count += action
        return self.count, float(action), self.count > 9, False, {}


class InWords(gymnasium.Wrapper[str, str, int, int]):
    """Words for numbers."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        seen, about = self.env.reset(seed=seed, options=options)
        return f"The sum is {seen}.", about

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        number = int(action) if action.isascii() and action.isdecimal() else 0
        seen, reward, terminated, truncated, about = self.env.step(number)
        return f"The sum is {seen}.", float(reward), terminated, truncated, about

    def sample_random_action(self) -> str:
        return str(self.env.action_space.sample() % 3)


for kind in (Climb, Rooted, Entangled, Shared, Broken, Numbers):
    gymnasium.register(f"{kind.__name__}-v0", kind, disable_env_checker=True)
