"""Environments of our own in the older form of the library `verifiers`, for tests."""

from typing import Any

import verifiers as vf
from datasets import Dataset


def _rows(first: int, count: int) -> Dataset:
    rows = [{"question": f"Guess {n % 5}.", "answer": str(n % 5)} for n in range(first, first + count)]
    return Dataset.from_list(rows)


class Guessing(vf.MultiTurnEnv):
    """Answers higher or lower until the number is said."""

    @vf.stop
    async def guessed(self, state: Any) -> bool:
        steps = state["trajectory"]
        return bool(steps) and steps[-1]["completion"][-1].content == state["answer"]

    async def env_response(self, messages: Any, state: Any, **_: Any) -> Any:
        said = messages[-1].content or ""
        if said == "break":
            raise RuntimeError("out of order")
        low = said.isdecimal() and int(said) < int(state["answer"])
        return [{"role": "user", "content": "higher" if low else "lower"}]


async def right(completion: Any, answer: str) -> float:
    return float(completion[-1].content == answer)


async def short(completion: Any) -> float:
    return 1.0 / len(completion)


def load_guessing(evaluated: bool = True) -> vf.Environment:
    rubric = vf.Rubric(funcs=[right, short], weights=[1.0, 0.5])
    return Guessing(
        dataset=_rows(0, 40),
        eval_dataset=_rows(40, 10) if evaluated else None,
        rubric=rubric,
        max_turns=3,
        system_prompt="Say a number.",
    )


def double(x: int) -> int:
    """Twice a number.

    Args:
        x: The number.
    """
    return 2 * x


def load_doubling() -> vf.Environment:
    return vf.ToolEnv(
        tools=[double], dataset=_rows(0, 12), eval_dataset=_rows(12, 4), rubric=vf.Rubric(funcs=[right]), max_turns=3
    )


def load_single() -> vf.Environment:
    return vf.SingleTurnEnv(dataset=_rows(0, 12), eval_dataset=_rows(12, 4), rubric=vf.Rubric(funcs=[right]))


def load_nothing() -> int:
    return 3
