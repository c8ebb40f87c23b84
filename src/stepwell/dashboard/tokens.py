"""A step's sampled tokens as HTML, each coloured by how surprising it was to the policy that sampled it.

Here, and in `tree`, the dashboard makes markup by hand, because thousands of tokens are too many widgets. Every text
passes `html.escape`; the browser's sanitiser then looks at it a second time.
"""

import html
from collections.abc import Callable, Mapping
from math import exp
from typing import Final

from stepwell.types import Ids, Step

Decode = Callable[[Ids], str]
"""Token ids to text."""
Decoders = Mapping[str, Decode]
"""By the name of the model whose tokens they read; tokens of others are shown as ids."""
"""Token ids, int32 [N], to text."""

FULL_COLOUR: Final = 5.0
"""Surprise in nats (minus the log-probability) from which the colour is at its strongest; p is then 0.7 %."""

_STRONGEST: Final = 0.75  # opacity: the text below must stay readable, on white and on black


def tokens_html(step: Step, decode: Decode | None) -> str:
    """One `<span>` per response token; its title has position, id, log-probability, probability and text."""
    spans = []
    for place, (token_id, logprob) in enumerate(zip(step.response_ids.tolist(), step.logprobs.tolist(), strict=True)):
        text = decode(step.response_ids[place : place + 1]) if decode else None
        shown = f"⟨{token_id}⟩" if not text else text.replace("\n", "⏎\n")
        title = f"token {place}: id {token_id}, logprob {logprob:.3f}, p {exp(min(logprob, 0.0)):.1%}"
        title += f", text {text!r}" if text is not None else ""
        spans.append(
            f'<span title="{html.escape(title)}" style="background: {colour(logprob)}">{html.escape(shown)}</span>'
        )
    return "".join(spans)


def colour(logprob: float) -> str:
    """CSS colour of a log-probability in nats: transparent for a certain token, orange for a surprising one."""
    surprise = min(max(-logprob, 0.0) / FULL_COLOUR, 1.0)
    return f"rgba(249, 115, 22, {surprise * _STRONGEST:.2f})"
