"""Segment by segment: no pair of tokens that do not see each other is computed, nothing is copied or masked.

Pre-order makes a prefix tree's attention a few dense blocks. Each segment attends causally to itself, and the whole of
its subtree, which stands right behind it, attends to all of it. A token's output is put together from the blocks that
it is a query of, weighted by their softmax denominators; each key and value is read where it lies, once for all rows
that share it. The gradient of a block needs the output and the denominator of the whole only, so each block's backward
pass is that of an ordinary attention. (Dao et al. 2022, arXiv 2205.14135, section 3 and algorithm 4: the same algebra
between the tiles of one row.)
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from stepwell.policy.attention import Scores
from stepwell.prefix_tree.tree import PrefixTree

_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_attention_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True, slots=True)
class Block:
    """Queries that attend to keys; `count` of them at once, end to end."""

    queries: slice
    keys: slice
    count: int
    own: bool
    """The queries are the keys, and each sees those before it: a segment with itself."""


class Blocks:
    """Attention plan of a tree's blocks, for CPUs."""

    def __init__(self, tree: PrefixTree, device: torch.device) -> None:
        if device.type != "cpu":
            raise TypeError(f"attention block by block is for CPUs, not for {device}")
        self.blocks = blocks_of(tree)
        self._positions = torch.from_numpy(tree.positions)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:  # noqa: ARG002
        """Attention of each block, put together."""
        if scores.softcap is not None:
            raise TypeError("attention block by block knows no softcap")
        masks = [self._mask(block, scores.window, query.dtype) for block in self.blocks]
        out: Tensor = _Attention.apply(query, key, value, self.blocks, masks, scores.scale)
        return out

    def _mask(self, block: Block, window: int | None, dtype: torch.dtype) -> Tensor | None:
        """What is added to the scores where a window hides keys of the block; None: nothing is hidden by one."""
        if window is None:
            return None
        length = (block.queries.stop - block.queries.start) // block.count
        i = self._positions[block.queries][:length, None]
        j = self._positions[block.keys][: (block.keys.stop - block.keys.start) // block.count]
        if int(i.max() - j[0]) < window:
            return None
        visible = (i - j < window) & (i >= j)
        return torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, -math.inf)


def blocks_of(tree: PrefixTree) -> tuple[Block, ...]:
    """All that there is to compute: first each segment with itself, neighbours of equal length at once."""
    return tuple(_blocks(tree))


def _blocks(tree: PrefixTree) -> Iterator[Block]:
    for length, same in groupby(tree.segments, key=lambda segment: segment.stop - segment.start):
        segments = list(same)
        tokens = slice(segments[0].start, segments[-1].stop)
        assert tokens.stop - tokens.start == length * len(segments)
        yield Block(tokens, tokens, len(segments), own=True)
    for segment in tree.segments:
        if segment.stop < segment.end:
            yield Block(slice(segment.stop, segment.end), slice(segment.start, segment.stop), 1, own=False)


class _Attention(torch.autograd.Function):
    """Softmax attention over the union of blocks: query [H, N, D], key and value [K, N, D] to [H, N, D]."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        blocks: tuple[Block, ...],
        masks: list[Tensor | None],
        scale: float,
    ) -> Tensor:
        heads, tokens, size = query.shape
        out = torch.empty((tokens, heads, size), dtype=_wide(query)).transpose(0, 1)  # as the layer goes on with it
        lse = torch.empty(query.shape[:2], dtype=_wide(query))
        for block, mask in zip(blocks, masks, strict=True):
            q, k, v = _cut(query, block.queries, block), _cut(key, block.keys, block), _cut(value, block.keys, block)
            part, logsum = _attention(q, k, v, 0.0, block.own and mask is None, attn_mask=mask, scale=scale)
            part, logsum = _joined(part), logsum.transpose(0, 1).flatten(1)
            if block.own:
                out[:, block.queries], lse[:, block.queries] = part, logsum
            else:
                if mask is not None:  # a query that sees nothing here
                    logsum = logsum.masked_fill(mask.isinf().all(-1), -math.inf)
                _merge(out[:, block.queries], lse[:, block.queries], part, logsum)
        out = out.to(query.dtype)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.blocks, ctx.masks, ctx.scale = blocks, masks, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        totals = [torch.zeros(x.shape, dtype=_wide(x)) for x in (query, key, value)]
        for block, mask in zip(ctx.blocks, ctx.masks, strict=True):
            g, q, o = (_cut(x, block.queries, block) for x in (grad, query, out))
            k, v = (_cut(x, block.keys, block) for x in (key, value))
            denominators = _cut(lse[..., None], block.queries, block)[..., 0]
            parts = _attention_backward(
                g, q, k, v, o, denominators, 0.0, block.own and mask is None, attn_mask=mask, scale=ctx.scale
            )
            for total, part, tokens in zip(totals, parts, (block.queries, block.keys, block.keys), strict=True):
                total[:, tokens] += _joined(part)
        dq, dk, dv = (total.to(x.dtype) for total, x in zip(totals, (query, key, value), strict=True))
        return dq, dk, dv, None, None, None


def _merge(out: Tensor, lse: Tensor, part: Tensor, logsum: Tensor) -> None:
    """Add a block to what the queries have attended to so far, in place."""
    total = torch.logaddexp(lse, logsum)
    out.mul_((lse - total).exp_()[..., None]).addcmul_(part, (logsum - total).exp_()[..., None].expand_as(part))
    lse.copy_(total)


def _cut(x_hnd: Tensor, tokens: slice, block: Block) -> Tensor:
    """The block's part of [H, N, D], as [count, H, L, D]."""
    return x_hnd[:, tokens].unflatten(1, (block.count, -1)).transpose(0, 1)


def _joined(x_bhld: Tensor) -> Tensor:
    """[count, H, L, D] to [H, count * L, D]."""
    return x_bhld.transpose(0, 1).flatten(1, 2)


def _wide(x: Tensor) -> torch.dtype:
    """Sums of several blocks are kept in this precision."""
    return torch.promote_types(x.dtype, torch.float32)
