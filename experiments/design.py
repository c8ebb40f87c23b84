"""What a study is made of: arms that are compared, in cases, over seeds; and the claims that this may decide."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from experiments.run import RunConfig
from stepwell.config import load_config

Measure = Literal["tokens", "updates", "seconds", "end"]
"""A run in one number: its mean score over the budget, in one of these; or its score at the end."""


@dataclass(frozen=True, slots=True)
class Arm:
    """What differs between runs that are compared."""

    name: str
    told: str
    """What it is, in a line of the report."""
    settings: tuple[str, ...]
    """Of `RunConfig`, as `a.b=c`."""


@dataclass(frozen=True, slots=True)
class Case:
    """Under which circumstances they are compared."""

    name: str
    settings: tuple[str, ...]
    arms: tuple[str, ...] = ()
    """Names of those that are run in it; empty: all."""
    seeds: int = 5
    """How many, counted from 1. In all studies the same number stands for the same first policy and tasks."""


@dataclass(frozen=True, slots=True)
class Claim:
    """That one arm is better than another, or no worse."""

    text: str
    """In words, with who says so."""
    arm: str
    control: str
    cases: tuple[str, ...]
    measure: Measure = "tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A question, and all that is run to answer it."""

    name: str
    title: str
    question: str
    """Markdown."""
    control: str
    """Name of the arm that the others are compared with."""
    arms: Sequence[Arm]
    cases: Sequence[Case]
    """The most important first: they are run in this order."""
    claims: Sequence[Claim] = ()
    reading: str = ""
    """What we make of the committed results: Markdown, written by hand."""
    measures: tuple[Measure, ...] = ("tokens", "end")
    curves: tuple[str, ...] = ()
    """Arms whose curves are drawn; empty: all."""

    def jobs(self, *, quick: bool = False) -> Iterator["Job"]:
        """All its runs: case by case, and there seed by seed, so that what is finished early can be compared.

        `quick`: two seeds of the first case, with an update each.
        """
        for case in self.cases[:1] if quick else self.cases:
            for seed in range(1, (2 if quick else case.seeds) + 1):
                for arm in self.arms_of(case):
                    yield Job(case.name, arm.name, seed, self.config(case, arm, seed, quick=quick))

    def arms_of(self, case: Case) -> list[Arm]:
        """Those that are run in a case."""
        return [arm for arm in self.arms if not case.arms or arm.name in case.arms]

    def config(self, case: Case, arm: Arm, seed: int, *, quick: bool = False) -> RunConfig:
        """All settings of one run. Raises ConfigError if one is wrong."""
        short = _QUICK if quick else ()
        base = {"algorithm": {"use": "grpo"}, "seed": seed}
        return load_config(RunConfig, base, [*case.settings, *arm.settings, *short])


_QUICK: Final = ("budget=1", "trials=1", "trial_turns=16", "collecting.steps=32", "warm_up.updates=2")


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a study."""

    case: str
    arm: str
    seed: int
    config: RunConfig
