"""What an update minimises once every token has its advantage: settings only; `stepwell.trainer` has the arithmetic."""

from typing import Final, Literal

from pydantic import Field, model_validator

from stepwell.config import Config

Ratio = Literal["token", "geo", "sqrt", "exact", "sequence"]
Aggregation = Literal["per_step", "per_trajectory", "per_sequence", "per_token"]
KL = Literal["k1", "k2", "k3"]

CLIP: Final[dict[Ratio, tuple[float, float]]] = {
    "token": (0.2, 0.2),
    "geo": (3e-4, 3e-4),
    "sqrt": (1e-3, 1e-3),
    "exact": (0.2, 0.2),
    "sequence": (3e-4, 4e-4),
}
"""Clip range (low, high) of each kind of ratio where none is set: they differ in size by orders of magnitude."""


class Objective(Config):
    """The loss that an update minimises, given the advantages.

    The first optimiser step on what the current version sampled has ratios of 1, so clipping binds in later steps of an
    update, and on data of older versions, only.
    """

    ratio: Ratio = "token"
    """Probability ratio new/old: of each `token`; or one for all tokens of a step: their geometric mean (`geo`: StepPO
    v4), centred and scaled by 1/√L (`sqrt`: CAPO), or their product (`exact`); or the geometric mean over a whole
    trajectory (`sequence`: GSPO)."""
    surrogate: Literal["clip", "cispo"] = "clip"
    """PPO's clipped surrogate, or CISPO's: the clipped ratio only weighs the gradient of the log-probability, so that
    no token is left without one."""
    clip_low: float | None = Field(default=None, ge=0, le=1)
    """The ratio is clipped to [1 - clip_low, 1 + clip_high]. Null: what suits the kind of ratio."""
    clip_high: float | None = Field(default=None, ge=0)
    """See `clip_low`."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Where the advantage is negative, a ratio counts as at most this. Null: without such a bound."""
    aggregation: Aggregation = "per_step"
    """What counts equally in the mean: steps, whose tokens share their weight; trajectories, whose steps share theirs;
    trajectories, whose tokens share theirs (`per_sequence`); or tokens."""
    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the entropy, which is maximised: nats per token, averaged as the policy's loss is."""
    kl_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the divergence from the reference, which is the policy as it was before its first update."""
    kl_estimator: KL = "k3"
    """Of each token's divergence, with x = log π_ref - log π: `k1` -x, `k2` x²/2, `k3` exp(x) - x - 1."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Add it to the loss, with its own gradient, or take it from the reward of its step, without."""
    old_logprobs: Literal["rollout", "trainer"] = "rollout"
    """The ratio's denominator: log-probabilities as sampled, or computed by the trainer before the update (decoupled
    PPO, Hilton et al. 2022, arXiv 2110.00641)."""
    correction: Literal["none", "truncate", "mask"] = "none"
    """Weight of a token by how much likelier the denominator's policy makes it than the one that sampled it: truncated
    at `correction_cap`, or 0 outside [1/cap, cap]. Needs old_logprobs `trainer`."""
    correction_level: Literal["token", "step"] = "token"
    """Of each token, or the product over all tokens of its step."""
    correction_cap: float = Field(default=2.0, ge=1)
    """See `correction`."""
    value_coefficient: float = Field(default=1.0, ge=0)
    """Weight of the critic's loss. On the critic's own parameters it has hardly any effect, as AdamW cancels a factor
    of their gradient: `learner.critic_lr` says how fast they learn. With `critic: shared` the gradient reaches the
    policy too, and this weighs it against the policy's own."""
    value_clip: float = Field(default=0.5, ge=0)
    """A value may move by at most this much per update before its loss goes flat; 0 switches clipping off."""

    @model_validator(mode="after")
    def _fits_together(self) -> "Objective":
        if self.correction != "none" and self.old_logprobs == "rollout":
            raise ValueError("correction needs old_logprobs: trainer, since it weighs those against the rollout's")
        if self.surrogate == "cispo" and self.dual_clip is not None:
            raise ValueError("dual_clip belongs to the clip surrogate; cispo bounds every ratio already")
        return self

    @property
    def clip(self) -> tuple[float, float]:
        """The clip range (low, high) that is in force."""
        low, high = CLIP[self.ratio]
        return (low if self.clip_low is None else self.clip_low, high if self.clip_high is None else self.clip_high)

    @property
    def spans_trajectories(self) -> bool:
        """Whether a step's part in the loss depends on the other steps of its trajectory."""
        return self.ratio == "sequence" or self.aggregation in ("per_trajectory", "per_sequence")
