"""What the folders of training runs tell, for pages that compare them. Who mounts the dashboard reads them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One figure of an evaluation, with the interval that it lies in."""

    benchmark: str
    model: str
    kind: str
    """Of task; empty: all of them."""
    metric: str
    value: float
    low: float
    high: float
    items: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """What one folder tells of its run."""

    recipe: Mapping[str, Any]
    """As resolved, without secrets."""
    scores: tuple[Score, ...] = ()


Runs = Callable[[], Mapping[str, RunFolder]]
"""Reads the folders that can be found, by name of the run."""
