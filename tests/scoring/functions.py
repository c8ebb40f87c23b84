"""Functions that the scorer `callable` calls in tests."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from stepwell.scoring.base import Score, final_answer
from stepwell.types import Trajectory


def length(trajectory: Trajectory) -> float:
    return len(final_answer(trajectory) or "")


def several(trajectory: Trajectory) -> dict[str, float]:
    return {"short": 1.0, "polite": 0.5}


async def later(trajectory: Trajectory) -> float:
    return 0.25


def of_steps(trajectory: Trajectory) -> Score:
    return Score(steps={step.id: {"even": float(step.index % 2 == 0)} for step in trajectory.steps}, text="by index")


def of_a_strange_step(trajectory: Trajectory) -> Score:
    return Score(parts={"whole": 1.0}, steps={"elsewhere": {"even": 1.0}})


def silent(trajectory: Trajectory) -> None:
    return None


def text(trajectory: Trajectory) -> str:
    return "good"


def infinite(trajectory: Trajectory) -> float:
    return float("inf")


def only_even(trajectory: Trajectory) -> float:
    if int(final_answer(trajectory) or 0) % 2:
        raise RuntimeError("odd")
    return 1.0


def slowly(trajectory: Trajectory) -> float:
    """Takes a while, and notes that it was called."""
    with Path(os.environ["STEPWELL_CALLED"]).open("a") as called:
        called.write(f"{trajectory.info.id}\n")
    time.sleep(0.02)
    return float(final_answer(trajectory) or 0)


number = 7


said: object = None
"""What `given` gives."""


def given(trajectory: Trajectory) -> object:
    return said


def of_an_impossible_part(trajectory: Trajectory) -> dict[str, float]:
    return {"fine": 1.0, "\ud800": 2.0}


def of_odd_kinds(trajectory: Trajectory) -> float:
    """Ends in each way in which a function can end."""
    match final_answer(trajectory):
        case "0":
            sys.exit("enough")
        case "1":
            raise KeyboardInterrupt
        case "2":
            return next(iter([]))
    return 1.0


async def leaving(trajectory: Trajectory) -> float:
    sys.exit(3)


def for_ever(trajectory: Trajectory) -> float:
    """Never returns, unless the answer is even."""
    if int(final_answer(trajectory) or 0) % 2:
        Path(os.environ["STEPWELL_CALLED"]).touch()
        time.sleep(10_000)
    return 1.0


meanwhile: Callable[[], object] = int
"""What else happens while `interrupted` scores."""


def interrupted(trajectory: Trajectory) -> dict[str, float]:
    meanwhile()
    return {"x0": 1.0, "x1": 1.0}


def four(trajectory: Trajectory) -> dict[str, float]:
    return {f"y{number}": float(number) for number in range(4)}
