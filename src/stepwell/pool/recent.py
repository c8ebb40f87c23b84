"""What was used last, within a budget of bytes."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class Recent(Generic[_K, _V]):
    """Values by key; those that were kept longest ago go first once all of them are too large. Not thread-safe."""

    def __init__(self, budget: int) -> None:
        """`budget`: bytes that all values together may have."""
        self._values: OrderedDict[_K, tuple[_V, int]] = OrderedDict()
        self._budget = budget
        self._held = 0

    def get(self, key: _K) -> _V | None:
        """The value of `key`; None if there is none (any more)."""
        found = self._values.get(key)
        return None if found is None else found[0]

    def keep(self, key: _K, value: _V, size: int) -> None:
        """Put `value`, of `size` bytes, in place of what `key` had."""
        before = self._values.pop(key, None)
        self._values[key] = (value, size)
        self._held += size if before is None else size - before[1]
        while self._held > self._budget:
            self._held -= self._values.popitem(last=False)[1][1]

    def drop(self, key: _K) -> None:
        """Forget the value of `key`, if there is one."""
        found = self._values.pop(key, None)
        self._held -= 0 if found is None else found[1]

    def clear(self) -> None:
        """Drop everything."""
        self._values.clear()
        self._held = 0
