"""An event loop in which waiting takes no time: years of sleeping agents are simulated in seconds."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class _Jumping(selectors.SelectSelector):
    """Never waits; says how long it would have."""

    waited = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everything waits for something that no clock brings")
        self.waited += max(timeout, 0.0)
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Its time begins at 0 and jumps to whatever is due next. For code that waits for nothing but sleeps and itself."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds that would have passed."""
        return self._jumping.waited


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """As `asyncio.run`, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)
