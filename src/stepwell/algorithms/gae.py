"""Generalised advantage estimation (Schulman et al. 2015, arXiv 1506.02438, eq. 16) over any sequence of decisions.

Token PPO applies it to tokens, StepPO to steps: the recursion is the same, only what counts as one decision differs.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.algorithms.base import Doubles
from stepwell.errors import InvalidRecord


def gae(rewards: npt.ArrayLike, values: npt.ArrayLike, *, gamma: float, lam: float, last_value: float = 0.0) -> Doubles:
    """Advantages of a sequence of N decisions.

    A_n = Σ_l (gamma·lam)^l δ_{n+l} with δ_n = r_n + gamma·V_{n+1} − V_n.

    Args:
        rewards: [N], the reward that follows each decision.
        values: [N], the critic's value of the state before each decision.
        gamma: discount per decision, in 0..1.
        lam: GAE's λ, in 0..1; 1 gives return minus value, 0 the one-step error.
        last_value: value of the state after the last decision; 0 where the episode terminated.

    Returns:
        float64 [N].

    Raises:
        InvalidRecord: lengths differ, or a number is NaN or infinite.
    """
    r, v = np.asarray(rewards, np.float64), np.asarray(values, np.float64)
    if r.shape != v.shape or r.ndim != 1:
        raise InvalidRecord(f"GAE needs one value per reward, got shapes {r.shape} and {v.shape}")
    if not (np.isfinite(r).all() and np.isfinite(v).all() and np.isfinite(last_value)):
        raise InvalidRecord("GAE was given a NaN or infinite reward or value")
    errors = r + gamma * np.append(v[1:], last_value) - v if len(r) else r
    return _discounted_sums(errors, gamma * lam)


def discounted_returns(rewards: npt.ArrayLike, gamma: float) -> Doubles:
    """G_n = r_n + gamma·G_{n+1} for a sequence of N rewards, float64 [N]. Raises InvalidRecord as `gae` does."""
    return gae(rewards, np.zeros(np.shape(rewards)), gamma=gamma, lam=1.0)


def _discounted_sums(x: npt.NDArray[Any], discount: float) -> Doubles:
    """y_n = x_n + discount · y_{n+1}."""
    out = np.empty(len(x), np.float64)
    following = 0.0
    for n in range(len(x) - 1, -1, -1):
        following = x[n] + discount * following
        out[n] = following
    return out
