"""Asynchrony: how much older than its update may data be?"""

from typing import Final

from experiments.design import Arm, Case, Claim, Study

_CORRECTED: Final = ("algorithm.objective.old_logprobs=trainer", "algorithm.objective.correction=truncate")
_AGES: Final = (0, 1, 2, 4, 8)
_BOTH: Final = ("grpo", "steppo")


def _arms(age: int) -> tuple[Arm, ...]:
    plain = Arm(f"{age}", f"trained {age} updates after it was sampled", (f"collecting.staleness={age}",))
    if not age:
        return (plain,)
    told = "the same; ratios to the policy before the update, tokens weighed by how likely it makes them, at most 2"
    return plain, Arm(f"{age}, corrected", told, (*plain.settings, *_CORRECTED))


_STEPPO: Final = (
    "algorithm.use=steppo",
    "algorithm.objective.clip_low=0.05",
    "algorithm.objective.clip_high=0.05",
    "collecting.group_size=1",
)
_BUDGET: Final = ("environment.turns=4", "axis=updates", "budget=24", "trials=6", "collecting.steps=128")

STALENESS: Final = Study(
    name="staleness",
    title="Asynchrony: staleness with and without correction",
    question="""Sampling that goes on during updates is faster, and trains on what an older policy sampled. How many
updates old may it be, and does a correction help: the ratio to the policy before the update instead of the one that
sampled, and tokens weighed by how much likelier the newer policy makes them? Ages are exact here: each batch is
trained on so many updates after it was sampled.""",
    control="0",
    arms=tuple(arm for age in _AGES for arm in _arms(age)),
    cases=(
        Case("grpo", ("algorithm.use=grpo", *_BUDGET)),
        Case("steppo", (*_STEPPO, *_BUDGET)),
    ),
    claims=(
        Claim("data one update old are worse than fresh ones", "0", "1", _BOTH, "updates"),
        Claim("data two updates old are worse than fresh ones", "0", "2", _BOTH, "updates"),
        Claim("data four updates old are worse than fresh ones", "0", "4", _BOTH, "updates"),
        Claim("data eight updates old are worse than fresh ones", "0", "8", _BOTH, "updates"),
        Claim("a correction helps at age 2", "2, corrected", "2", _BOTH, "updates"),
        Claim("a correction helps at age 4", "4, corrected", "4", _BOTH, "updates"),
        Claim("a correction helps at age 8", "8, corrected", "8", _BOTH, "updates"),
    ),
    reading="""Age costs, and steadily: the mean score falls by .08 at one update, .18 at two, .30 at four, .44 at
eight. The reason is in the clipped share, which rises from .01 to .14. Ratios are clipped around the policy that
sampled, and the policy has left that range before the update begins, so what would move it on is cut.

Taking the ratio against the policy before the update, with truncated weights, wins nearly all of it back: at ages 1,
2 and 4 the difference to fresh data is not decided, at 8 it is .06. That comes at a price. Nothing holds the policy
near the one that sampled any more, and some runs fall back late: one of age 1 from .70 to .60, one of age 8 from .86
to .69. Two updates with the correction had no such run, and no measurable loss.

What age buys, the time that nobody waits, is not measured here: see [scale](../scale.md#asynchrony-a-simulation).""",
    measures=("updates", "end"),
    curves=("0", "1", "2", "4", "8", "8, corrected"),
)
