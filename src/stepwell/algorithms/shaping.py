"""What a teacher's opinion does to an advantage, as functions of arrays: a bounded weight, and steps made equal again.

Shape letter: R response tokens of a step. Everything is float64, nats.
"""

from collections.abc import Sequence
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from stepwell.algorithms.base import Doubles, Inputs
from stepwell.errors import InvalidRecord
from stepwell.types import Mask, Step

Weight = Literal["sigmoid", "exp"]
Equal = Literal["mean", "sum"]

MAX_GAP: Final = 20.0
"""Nats: gaps, and sums of gaps, are kept within ±this before they are exponentiated."""
_COEFFICIENTS: Final = (0.5, 2.0)
"""Within which the published step normalisation keeps its coefficients."""


def logprob_difference(one: npt.ArrayLike, other: npt.ArrayLike) -> Doubles:
    """log π_1 − log π_2 of each of the same tokens, float64 [R].

    Raises:
        InvalidRecord: they are of different lengths, or one is NaN or infinite.
    """
    a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
    if a.shape != b.shape or a.ndim != 1:
        raise InvalidRecord(f"two policies scored {a.shape} and {b.shape} tokens of the same response")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise InvalidRecord("a policy's log-probability is NaN or infinite")
    difference: Doubles = a - b
    return difference


def gap(teacher: npt.ArrayLike, student: npt.ArrayLike) -> Doubles:
    """Δ = log π_T − log π_S of each response token, within ±20 nats; float64 [R]. Raises as `logprob_difference`."""
    return logprob_difference(teacher, student).clip(-MAX_GAP, MAX_GAP)


def step_gap(step: Step, inputs: Inputs, *, as_sampled: bool = False) -> Doubles:
    """The gap of a step that the teacher scored, to the current policy, or `as_sampled`; float64 [R].

    Raises:
        InvalidRecord: teacher or student did not score it, or as `gap` does.
    """
    teacher = inputs.teacher_logprobs.get(step.id)
    student = step.logprobs if as_sampled else inputs.logprobs.get(step.id)
    if teacher is None or student is None:
        who = "teacher" if teacher is None else "student"
        raise InvalidRecord(f"the {who} did not score step {step.id}: a missing gap is not 0")
    return gap(teacher, student)


def raw_weights(gaps: Doubles, advantage: float, kind: Weight = "sigmoid") -> Doubles:
    """2σ(sign(A)·Δ), or exp(sign(A)·Δ): above 1 where the teacher finds a good step's token likelier than the student
    does, or a bad step's token less likely. Δ counts within ±20 nats, also where it is a sum. float64 [R]."""
    x = np.sign(advantage) * gaps.clip(-MAX_GAP, MAX_GAP)
    raw: Doubles = np.exp(x) if kind == "exp" else 2 / (1 + np.exp(-x))
    return raw


def mixed(advantage: float, weights: Doubles, mixing: float) -> Doubles:
    """Ã = A·((1 − λ) + λw), float64 [R]; exactly A where the weight is 1."""
    return advantage * (1 + mixing * (weights - 1))


def mixing_at(updates: int, start: float, decay_updates: int | None) -> float:
    """λ after that many updates: `start`, going down to 0 in a straight line over `decay_updates`; None: it stays."""
    return start if decay_updates is None else start * max(0.0, 1 - updates / decay_updates)


def equalised(parts: Sequence[Doubles], spans: Sequence[Mask], by: Equal = "mean", eps: float = 1e-6) -> list[Doubles]:
    """The advantages of a trajectory's steps, scaled so that each step has the same |Ã| on its span.

    `mean`: per token on average, as published (`equal_step_mean_abs`): m̄/(m_k + eps), within 1/2 to 2, where m_k is
    step k's mean and m̄ the mean of those. Since the advantage of a trajectory is one number, this takes back all that
    weights did between steps; what they did within a step stays. `sum`: in total, and exactly, so that a long step
    counts no more than a short one and the trajectory as much as before.

    A step whose span is empty or has no advantage is left alone, and so is a trajectory with fewer than two others.

    Args:
        parts: Ã of each step, [R] each.
        spans: which of its tokens are the step's span, bool [R] each; only those are scaled.
        by: what becomes equal.
        eps: in the denominator, for `mean`.
    """
    masses = np.array([_mass(part[span], by) for part, span in zip(parts, spans, strict=True)])
    usable = masses > 0
    if usable.sum() < 2:
        return list(parts)
    target = masses[usable].mean()
    coefficients = np.ones(len(parts))
    coefficients[usable] = target / (masses[usable] + (eps if by == "mean" else 0.0))
    if by == "mean":
        coefficients = coefficients.clip(*_COEFFICIENTS)
    return [
        np.where(span, coefficient * part, part)
        for part, span, coefficient in zip(parts, spans, coefficients, strict=True)
    ]


def _mass(span: Doubles, by: Equal) -> float:
    if not len(span):
        return 0.0
    return float(np.abs(span).mean() if by == "mean" else np.abs(span).sum())


def shuffled(gaps: Doubles, span: Mask, seed: str) -> Doubles:
    """The gaps of a span in another order, always the same for the same `seed`: a placebo with the same statistics."""
    mixed_up = gaps.copy()
    order = np.random.default_rng(list(seed.encode())).permutation(int(span.sum()))
    mixed_up[span] = gaps[span][order]
    return mixed_up
