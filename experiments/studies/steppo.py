"""StepPO and CAPO: is it the estimator, the ratio, the whitening, or the discount?"""

from typing import Final

from experiments.design import Arm, Case, Claim, Study

_ALONE: Final = "collecting.group_size=1"
"""Those with a critic see as many tasks as the others see trajectories, as in the papers."""
_CLIP: Final = {"token": 0.2, "geo": 0.05, "sqrt": 0.1}
"""Of each ratio: what was published for the last two suits steps that are a thousand times smaller."""
_SHORT: Final = "2 turns"
_LONG: Final = "8 turns"
_KNOWING: Final = "8 turns, critic taught"


def _clip(low: float, high: float | None = None) -> tuple[str, str]:
    return f"algorithm.objective.clip_low={low}", f"algorithm.objective.clip_high={low if high is None else high}"


def _factor(estimator: str, ratio: str, whiten: str) -> Arm:
    unit = "step" if estimator == "step" else "token"
    of = "token" if ratio == "token" else f"step ({ratio})"
    return Arm(
        f"{estimator}+{ratio}" + ("" if whiten == unit else f", whitened by {whiten}"),
        f"advantages by {estimator}, a ratio per {of} with clip {_CLIP[ratio]:g}, whitened over {whiten}s",
        (
            f"algorithm.use={'steppo' if estimator == 'step' else 'ppo'}",
            f"algorithm.gamma={0.99 if estimator == 'step' else 1.0}",
            f"algorithm.whiten={whiten}",
            f"algorithm.objective.ratio={ratio}",
            *_clip(_CLIP[ratio]),
            "algorithm.objective.aggregation=per_step",
            _ALONE,
        ),
    )


_ARMS: Final = (
    _factor("token", "token", "token"),
    _factor("step", "geo", "step"),
    _factor("step", "sqrt", "step"),
    _factor("step", "token", "step"),
    _factor("token", "geo", "token"),
    _factor("token", "sqrt", "token"),
    _factor("token", "token", "step"),
    _factor("step", "geo", "token"),
    Arm(
        "token+token, γ=.99",
        "token PPO as published for comparison: γ = .99 for each token",
        (*_factor("token", "token", "token").settings, "algorithm.gamma=0.99"),
    ),
    Arm(
        "step+geo, clip 3e-4",
        "StepPO with the clip range that was published",
        (*_factor("step", "geo", "step").settings, *_clip(3e-4)),
    ),
    Arm("grpo", "GRPO, clip .2", ("algorithm.use=grpo",)),
    Arm("rloo", "RLOO, clip .2", ("algorithm.use=rloo",)),
    Arm("gigpo", "GiGPO: states are equal where turn, word and right answers are", ("algorithm.use=gigpo",)),
    Arm(
        "gspo",
        "GSPO: one ratio per trajectory, clip .05",
        (
            "algorithm.use=grpo",
            "algorithm.objective.ratio=sequence",
            "algorithm.objective.aggregation=per_sequence",
            *_clip(0.05),
        ),
    ),
)
_MAIN: Final = ("token+token", "token+token, γ=.99", "step+token", "step+geo", "step+sqrt", "grpo", "gigpo")
_ANY: Final = (_LONG, _SHORT, _KNOWING, "4 turns", "16 turns", "8 turns, paid at once", "8 turns, paid 3 turns later")

STEPPO: Final = Study(
    name="steppo",
    title="StepPO and CAPO: estimator, ratio, whitening, discount",
    question="""StepPO estimates advantages once per step and clips one ratio per step, where token PPO does both per
token; CAPO scales that ratio by 1/√L. The published comparison changes estimator, critic, whitening, ratio, clip
range and horizon at once: token PPO has γ = .99 for each token, StepPO for each step. Here each is changed by
itself.""",
    control="token+token",
    arms=_ARMS,
    cases=(
        Case(_LONG, ("environment.turns=8",)),
        Case(_SHORT, ("environment.turns=2",), _MAIN),
        Case(_KNOWING, ("environment.turns=8", "critic_updates=24"), _MAIN[:4]),
        Case("16 turns", ("environment.turns=16",), _MAIN),
        Case("8 turns, paid at once", ("environment.turns=8", "environment.delay=0"), _MAIN),
        Case("8 turns, paid 3 turns later", ("environment.turns=8", "environment.delay=3"), _MAIN),
        Case("4 turns", ("environment.turns=4",), _MAIN),
    ),
    claims=(
        Claim("StepPO learns faster than token PPO as published (StepPO v4)", "step+geo", "token+token, γ=.99", _ANY),
        Claim("… and than token PPO without a discount", "step+geo", "token+token", _ANY),
        Claim("the estimator alone: steps against tokens, both with token ratios", "step+token", "token+token", _ANY),
        Claim("the ratio alone: geo against token, both with step advantages", "step+geo", "step+token", _ANY),
        Claim("CAPO's ratio is better than StepPO v4's (CAPO v5)", "step+sqrt", "step+geo", _ANY),
        Claim("γ = .99 per token is worse than 1", "token+token", "token+token, γ=.99", _ANY),
        Claim("the published clip range does no harm at this size", "step+geo, clip 3e-4", "step+geo", _ANY),
        Claim("StepPO learns faster than GRPO", "step+geo", "grpo", _ANY),
        Claim("GiGPO learns faster than GRPO", "gigpo", "grpo", _ANY),
        Claim(
            "whitening over steps is better than over tokens, for StepPO",
            "step+geo",
            "step+geo, whitened by token",
            _ANY,
        ),
    ),
    reading="""**Nothing that sets StepPO apart is decided here.** At 2 and 4 turns arms with a critic lie within .01
of each other, with intervals of ±.04 at most: in ten or twenty tokens there is hardly anything to tell apart. At 8
turns estimator, ratio and whitening differ by .04 at most, and intervals reach ±.06. So large effects are excluded
for this task, small ones are not.

**The critic** is the likely reason. In twelve updates it comes to explain 1 % of the returns' variance at 8 turns, and
up to 7 % at 2. With a critic that knows nothing, advantages by step and by token are the same return, whitened, but for
the discount.

**The discount** of .99 per token is .67 over the 40 tokens of 8 turns: its mean is lower by .03, which is not decided.
Over the thousands of tokens of published episodes it is nothing, so that its part in the published gain is as open as
before.

**The clip range matters more than the ratio that it clips.** With the published 3e-4 half of the tokens are clipped and
learning all but stops (-.43). It belongs to learning rates of 1e-6; who takes it over to larger ones measures that.

Baselines without a critic are no worse, and a third quicker. GiGPO is ahead of GRPO by .01 at 2 turns, where the same
state comes again in a group; at 8 turns that is not decided. GSPO has the highest mean there, not decided either.""",
    curves=_MAIN,
)
