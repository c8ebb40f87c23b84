"""StepOPSD: does the teacher's opinion say more than its statistics would?"""

from typing import Final

from experiments.design import Arm, Case, Claim, Study

_STRONG: Final = (
    "algorithm.use=stepopsd",
    "algorithm.mixing=1.0",
    "algorithm.clip=0.5",
    "algorithm.decay_updates=null",
)
"""Twenty-five times the published band, since within that there is hardly anything to see."""
_NO_EQUAL: Final = "algorithm.normalize=none"
_LABEL: Final = ("algorithm.hindsight.told=nothing", "algorithm.hindsight.outcome=true")
_BOTH: Final = ("all turns count", "only all right pays")


def _knobs(mixing: float, clip: float) -> Arm:
    settings = (
        "algorithm.use=stepopsd",
        f"algorithm.mixing={mixing}",
        f"algorithm.clip={clip}",
        "algorithm.decay_updates=null",
    )
    return Arm(f"λ={mixing:g}, α={clip:g}", "peer hint, normalised, no decay", settings)


_GRPO: Final = "λ=0 (GRPO)"
_TOLD: Final = (
    _GRPO,
    "as published",
    "strong",
    "strong, not normalised",
    "strong, shuffled",
    "strong, label",
)
_KNOBS: Final = tuple(_knobs(mixing, clip) for mixing in (0.2, 1.0) for clip in (0.05, 0.2, 0.5))
_HINTED: Final = ("warm_up.hinted=0.4",)

STEPOPSD: Final = Study(
    name="stepopsd",
    title="StepOPSD: hindsight, its placebo, and its normalisation",
    question="""StepOPSD multiplies GRPO's advantages by weights within 1 ± λα, from what a teacher thinks that was
told how a correct peer did it. As published that is ±1 %, its normalisation takes back all differences between steps,
and it ends after 50 updates. So the arms have a band of ±50 % without an end, beside the published one; the policy's
warm-up has shown it how to use such hints. The placebo has the same weights, shuffled among the tokens of a step.""",
    control=_GRPO,
    arms=(
        Arm(_GRPO, "no teacher", ("algorithm.use=stepopsd", "algorithm.mixing=0")),
        Arm("as published", "λ = .2, α = .05, decaying over 50 updates", ("algorithm.use=stepopsd",)),
        Arm("strong", "λ = 1, α = .5, no decay; else as published", _STRONG),
        Arm("strong, not normalised", "weights may move credit between steps", (*_STRONG, _NO_EQUAL)),
        Arm(
            "strong, shuffled",
            "not normalised; each token has the weight of another one of its step",
            (*_STRONG, _NO_EQUAL, "algorithm.gap=shuffled"),
        ),
        Arm(
            "strong, by step",
            "not normalised; the gap of a whole step for all its tokens",
            (*_STRONG, _NO_EQUAL, "algorithm.gap=step"),
        ),
        Arm(
            "strong, label",
            "not normalised; the teacher is told only the outcome",
            (*_STRONG, _NO_EQUAL, *_LABEL),
        ),
        Arm(
            "strong, equal sums",
            "steps are made equal in total",
            (*_STRONG, "algorithm.normalize=equal_step_sum_abs"),
        ),
        Arm(
            "strong, current teacher",
            "not normalised; who gets no hint has no teacher either",
            (*_STRONG, _NO_EQUAL, "algorithm.refresh_every=0"),
        ),
        *_KNOBS,
    ),
    cases=(
        Case("all turns count", ("environment.turns=4", *_HINTED), _TOLD),
        Case("only all right pays", ("environment.turns=2", "environment.pays=all", *_HINTED), _TOLD),
        Case(
            "knobs",
            ("environment.turns=4", *_HINTED),
            (_GRPO, "strong, by step", "strong, equal sums", "strong, current teacher", *(arm.name for arm in _KNOBS)),
        ),
    ),
    claims=(
        Claim("as published it is better than GRPO (StepOPSD)", "as published", _GRPO, _BOTH),
        Claim("with a wide band it is better than GRPO", "strong", _GRPO, _BOTH),
        Claim("normalisation costs credit between steps", "strong, not normalised", "strong", _BOTH),
        Claim("the teacher's opinion beats its placebo", "strong, not normalised", "strong, shuffled", _BOTH),
        Claim("who is told the outcome is a better teacher than none", "strong, label", _GRPO, _BOTH),
        Claim("a peer's transcript tells more than the outcome", "strong, not normalised", "strong, label", _BOTH),
    ),
    reading="""**As published it is GRPO**: the difference is within .03 either way, as a band of 1 % would have it,
and an effect of the size that the paper reports is excluded for this task.

**A wide band shows what the teacher says.** Told only the outcome it is ahead of GRPO by .17, the largest gain in
this study: it scores all tokens of all trajectories, and the warm-up has taught it what the word "correct" means,
which a pretrained model has to know by itself. With the peer's transcript, told to failed trajectories alone as
published, it is behind GRPO by .08 to .11, not decided, and no better than its own placebo.

Why a peer does harm, when a peer's teacher does tell right from wrong (measured before the first update: right
answers are .3 nats likelier to it, wrong ones .9 to 1.1 less likely): correct trajectories are told nothing, so
theirs is the opinion of a policy that is up to ten updates old. What was learnt since is unlikely to that one, and so
counts less. The arm that would tell, `strong, current teacher`, was not run.

Where **only all right pays**, nothing is decided: some seeds find the first reward and some never do, which outweighs
all differences of arms.

Whether the normalisation costs credit between steps is not decided. It can only matter where a teacher helps, so the
arm to normalise would be the one with the label.""",
)
