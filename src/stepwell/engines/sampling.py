"""One token for each of many rows of logits, every row by its own wishes.

Shape letters: N rows, W vocabulary size.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stepwell.types import Sampling

Top = tuple[tuple[int, float], ...]
"""(id, log-probability) of the likeliest tokens, best first."""


@dataclass(slots=True, eq=False)
class Wish:
    """How one response is sampled."""

    sampling: Sampling
    generator: torch.Generator | None = None
    """A random stream of its own; None draws from the shared one."""
    top: int = 0
    """How many of the likeliest tokens to report."""
    allowed: Tensor | None = None
    """bool [W]: the candidates for the next token, if not all are."""

    @property
    def plain(self) -> bool:
        """Whether the next token is drawn from all, by the shared random stream."""
        sampling = self.sampling
        drawn_from_all = sampling.temperature > 0 and sampling.top_p == 1 and not sampling.top_k
        return drawn_from_all and self.generator is None and self.allowed is None


@dataclass(frozen=True, slots=True)
class Pick:
    """A sampled token."""

    token: int
    logprob: float
    """Nats, after temperature; as if all tokens had been candidates and nothing had been truncated."""
    top: Top


def sample(logits_nw: Tensor, wishes: Sequence[Wish], shared: torch.Generator) -> list[Pick]:
    """One token per row."""
    scale = torch.tensor([wish.sampling.scale for wish in wishes])
    logp = (logits_nw / scale[:, None]).log_softmax(-1)
    tokens = torch.multinomial(logp.exp(), 1, generator=shared).squeeze(1)
    for row, wish in enumerate(wishes):
        if not wish.plain:
            tokens[row] = _pick(logp[row], wish, shared)
    chosen = logp.gather(1, tokens[:, None]).squeeze(1)
    tops = [_likeliest(logp[row], wish.top) if wish.top else () for row, wish in enumerate(wishes)]
    return [Pick(*row) for row in zip(tokens.tolist(), chosen.tolist(), tops, strict=True)]


def _pick(logp_w: Tensor, wish: Wish, shared: torch.Generator) -> Tensor:
    sampling = wish.sampling
    if wish.allowed is not None:
        logp_w = logp_w.masked_fill(~wish.allowed, -torch.inf).log_softmax(-1)
    if sampling.temperature == 0:
        return logp_w.argmax()
    kept = _truncate(logp_w, sampling.top_k, sampling.top_p)
    return torch.multinomial(kept, 1, generator=wish.generator or shared).squeeze()


def _truncate(logp_w: Tensor, top_k: int, top_p: float) -> Tensor:
    """Probabilities [W] with everything outside the top k and outside the nucleus of mass `top_p` set to 0."""
    p, order = logp_w.exp().sort(descending=True)
    outside = p.cumsum(0) - p >= top_p  # the token that crosses the threshold stays in
    outside[0] = False  # and so does the likeliest, however small a threshold
    if top_k:
        outside[top_k:] = True
    return torch.zeros_like(p).scatter(0, order, p.masked_fill(outside, 0.0))


def _likeliest(logp_w: Tensor, count: int) -> Top:
    best = logp_w.topk(count)
    return tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
