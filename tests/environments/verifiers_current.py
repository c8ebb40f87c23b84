"""Task sets of our own in the present form of the library `verifiers`, for tests."""

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf


class SumData(vf.TaskData):
    """A sum and what it comes to."""

    answer: str


class Sum(vf.Task[SumData]):
    """Says a number, and little else."""

    @vf.reward
    async def right(self, trace: Any) -> float:
        if trace.last_reply == "break":
            raise RuntimeError("out of order")
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.5)
    async def short(self, trace: Any) -> float:
        return float(len(trace.last_reply) < 10)


class Sums(vf.Taskset[Sum]):
    """Without end."""

    INFINITE = True

    def load(self) -> Iterator[Sum]:
        number = 0
        while True:
            data = SumData(prompt=f"{number} + 1 = ?", system_prompt="Say a number.", answer=str(number + 1))
            yield Sum(data, self.config.task)
            number += 1


class Boxed(Sum):
    """Needs a container."""

    NEEDS_CONTAINER = True


def make_boxed() -> vf.Taskset:
    class Boxes(vf.Taskset[Boxed]):
        def load(self) -> Iterator[Boxed]:
            yield Boxed(SumData(prompt="1 + 1 = ?", answer="2"))

    return Boxes(vf.TasksetConfig())


def make_nothing() -> int:
    return 3
