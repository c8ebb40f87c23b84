"""RTPO: order, baseline, continuation and context; and what it costs."""

from typing import Final

from experiments.design import Arm, Case, Claim, Study

_RTPO: Final = (
    "algorithm.use=rtpo",
    "algorithm.baseline=leave_one_out",
    "learner.lr=1e-3",
    "learner.minibatch_steps=null",
    "collecting.group_size=4",
)
_SEEUPO: Final = (
    "algorithm.use=seeupo",
    "algorithm.objective.clip_low=0.05",
    "algorithm.objective.clip_high=0.05",
    "learner.lr=1e-3",
    "learner.minibatch_steps=null",
)
_SHOWN: Final = "shown history"
_ALONE: Final = ("8 turns", "4 turns", "2 turns")
_SEEN: Final = (
    "grpo",
    "seeupo",
    "rtpo",
    "rtpo, as published",
    "rtpo, own mean",
    "rtpo, critic",
    "rtpo, forward",
    "rtpo, reused",
)
"""Arms with prompts that hold all that matters."""
_HISTORY: Final = ("grpo, exact context", "grpo, flattened context", "rtpo, exact context", "rtpo, flattened context")

RTPO: Final = Study(
    name="rtpo",
    title="RTPO: reverse turns, siblings, contexts, and their price",
    question="""RTPO takes each turn of a trunk anew by siblings, the last turn first, with the policy that is
current, and trains that turn alone. That compares like with like, and costs K + n·K(K + 1)/2 turns for K·n that are
trained. Is it better than GRPO and SeeUPO for the same sampled tokens, and for the same time? And which of its parts
matter?""",
    control="grpo",
    arms=(
        Arm("grpo", "GRPO, as in the study of StepPO", ("algorithm.use=grpo",)),
        Arm("seeupo", "SeeUPO, as in its paper, with clip .05", _SEEUPO),
        Arm(
            "rtpo",
            "RTPO: four siblings of each state, compared with the mean of the others; alike ones not played on",
            _RTPO,
        ),
        Arm(
            "rtpo, as published",
            "two siblings, their own mean, alike ones played on",
            (*_RTPO, "algorithm.baseline=mean", "algorithm.skip_alike=false", "collecting.group_size=2"),
        ),
        Arm(
            "rtpo, own mean",
            "four siblings, compared with their mean, each's own return included",
            (*_RTPO, "algorithm.baseline=mean"),
        ),
        Arm("rtpo, critic", "compared with a critic's value of the state", (*_RTPO, "algorithm.baseline=critic")),
        Arm("rtpo, forward", "the first turn first", (*_RTPO, "algorithm.order=forward")),
        Arm(
            "rtpo, reused",
            "all turns' siblings are played before the first update of a round, their continuations weighed",
            (*_RTPO, "algorithm.continuation=reused", "collecting.at_once=true"),
        ),
        Arm("rtpo, exact context", "prompts show two turns before, and are trained on as seen", _RTPO),
        Arm(
            "rtpo, flattened context",
            "the same, but the whole history is trained on, as if it had been seen",
            (*_RTPO, "collecting.context=flattened"),
        ),
        Arm("grpo, exact context", "GRPO with such prompts", ("algorithm.use=grpo",)),
        Arm(
            "grpo, flattened context",
            "GRPO, trained on the whole history",
            ("algorithm.use=grpo", "collecting.context=flattened"),
        ),
    ),
    cases=(
        Case("8 turns", ("environment.turns=8",), _SEEN),
        Case(_SHOWN, ("environment.turns=8", "collecting.shown=2", "warm_up.earlier=2"), _HISTORY),
        Case("4 turns", ("environment.turns=4",), _SEEN),
        Case("2 turns", ("environment.turns=2",), _SEEN),
    ),
    claims=(
        Claim("RTPO beats GRPO at equal sampled tokens (RTPO, table 1)", "rtpo", "grpo", _ALONE),
        Claim("… and at equal time", "rtpo", "grpo", _ALONE, "seconds"),
        Claim("RTPO beats SeeUPO at equal sampled tokens (RTPO, table 1)", "rtpo", "seeupo", _ALONE),
        Claim("… and at equal time", "rtpo", "seeupo", _ALONE, "seconds"),
        Claim(
            "leaving one out beats two siblings and their own mean (theorem 2: a factor of 2)",
            "rtpo",
            "rtpo, as published",
            _ALONE,
        ),
        Claim("leaving one out beats the mean of four", "rtpo", "rtpo, own mean", _ALONE),
        Claim("the last turn first beats the first turn first", "rtpo", "rtpo, forward", _ALONE),
        Claim("regenerated continuations beat reused ones (RTPO, table 3)", "rtpo", "rtpo, reused", _ALONE),
        Claim(
            "exact contexts beat flattened ones, in RTPO", "rtpo, exact context", "rtpo, flattened context", (_SHOWN,)
        ),
        Claim(
            "exact contexts beat flattened ones, in GRPO", "grpo, exact context", "grpo, flattened context", (_SHOWN,)
        ),
    ),
    reading="""At 8 turns the main claim holds for equal tokens (+.06), and more clearly for equal CPU time (+.18).
RTPO is early rather than better: by 3,400 tokens it has two thirds right where GRPO has two fifths, and at the end
GRPO (.91) and SeeUPO (.94) are not behind it (.89). Part of the advantage in time is that its updates are one
optimiser step where GRPO's here are eight. The paper's own test at equal compute was a tie.

**Order is what carries it.** The first turn first loses .27. In it each sibling's return holds the luck of up to
seven turns by a policy that has not learnt them; last turn first, returns differ only by what is trained, siblings
cost one turn each, and what follows has become reliable by the time that earlier turns need it. That is the variance
argument of the paper's theorem 3, and it holds here although all turns share their parameters.

With 4 turns the order decides nothing (.01 ± .05): it is long episodes that need it. There RTPO is ahead of SeeUPO,
and of GRPO by as much, which is not decided.

**Reused continuations fail** (.17 at 8 turns, hardly above the start; .51 at 4), where the paper loses some points.
All turns' siblings come from one policy, so by the eighth update of a round data are eight updates old, and clipped
around the policy that sampled: the [study of staleness](staleness.md) shows the same, and its cure, `old_logprobs:
trainer`, was not tried.

**Two siblings with their own mean**, as published, are fickle: two seeds learn as fast as any arm, two end near .4
and .5, one at 0. Half of the trained steps have no advantage (.48), as the paper reports of its own sparse task (83
to 90 %), and an update that has none still moves the policy, by what AdamW remembers of earlier ones: with steps of
1e-3 that matters, with those of the paper it may not. Whether four siblings leave one out or not is not decided; the
factor of 3/4 between the two is one that AdamW cancels.

A critic in place of siblings has seen too little after 22 updates: it explains nothing of the returns.""",
    measures=("tokens", "seconds", "end"),
    curves=("grpo", "seeupo", "rtpo", "rtpo, as published", "rtpo, reused"),
)
