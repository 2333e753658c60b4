"""`partita::_scaled_dot_product_dropout_attention` and its backward: attention that drops weights, as one operator.

    weights = softmax(scale q k^T + mask)          out = (kept weights / (1 - p)) v

Importing this file registers them with torch. As flash attention does (Dao et al., 2022), forward leaves the logarithms
of the sums, and `state`, two numbers by which backward draws again what was kept; scores are made block by block, each
of which stays in a cache, in both passes.

    forward   q (B, H, L, D), k (B, H, S, D), v (B, H, S, E)  ->  out (B, H, L, E), sums (B, H, L), state (2)
    backward  gradient of out, q, k, v, out, sums, state      ->  gradients of q, k, v
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import product
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, library

from partita.cost.scratch import ROOM, block_extents
from partita.graph.repeats import DROPPING

LOWEST: Final = -80.0  # of which the exponential is 2e-35
HIDDEN: Final = float("-inf")
NAME: Final = DROPPING.split(".")[1]
TOLD: Final = "float probability, bool causal, float? scale"
Block: TypeAlias = tuple[slice, slice, slice]  # of samples, heads and queries
Drops: TypeAlias = Callable[[Block, Tensor], Tensor]  # what a block's weights are multiplied by: 0, or 1 / (1 - p)
Source: TypeAlias = Callable[[Tensor, tuple[int, ...], float], Drops]  # of a state, the scores' shape, and p


def drawn(state: Tensor, _: tuple[int, ...], probability: float) -> Drops:
    """Drawn block by block by a generator of torch's that begins at `state`."""
    generator = torch.Generator().manual_seed(int(state[0]))

    def drops(_: Block, weights: Tensor) -> Tensor:
        kept = torch.empty(weights.shape, dtype=weights.dtype).bernoulli_(1.0 - probability, generator=generator)
        return kept.to(weights.device) / (1.0 - probability)

    return drops


def keyed(uniform: Callable[[tuple[int, ...], int, int], Tensor]) -> Source:
    """Drawn as `keyed_dropout` has it: a state is a random operator's key and the dim of its samples, of which and of a
    shape `uniform` makes numbers."""

    def source(state: Tensor, shape: tuple[int, ...], probability: float) -> Drops:
        kept = uniform(shape, *state.tolist()).double() < 1.0 - probability

        def drops(block: Block, weights: Tensor) -> Tensor:
            mine = kept[block][..., : weights.shape[-1]]
            return mine.to(weights.device, weights.dtype) * (1.0 / (1.0 - probability))

        return drops

    return source


EAGER: Final[ContextVar[tuple[Source, Tensor | None]]] = ContextVar("how eager calls draw", default=(drawn, None))


@contextmanager
def drawing(source: Source, state: Tensor | None) -> Iterator[None]:
    """Inside, calls of the operators draw from `source`, a forward one from `state`."""
    token = EAGER.set((source, state))
    try:
        yield
    finally:
        EAGER.reset(token)


def everything(_: Tensor, __: tuple[int, ...], probability: float) -> Drops:
    """Nothing is dropped."""
    return lambda _, weights: torch.ones_like(weights)


def new_state(device: torch.device) -> Tensor:
    """Where a generator begins, drawn from torch's own of a device, which recomputation sets back."""
    return torch.randint(2**62, (2,), device=device).cpu()


def forward(
    source: Source, state: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, probability: float,
    causal: bool, scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The output, the logarithms of the sums, and the state; rows that are masked altogether are 0."""
    drops = source(state, (*q.shape[:3], k.shape[2]), probability)
    out, sums = _like(q, v.shape[3], q.dtype), q.new_empty(q.shape[:3], dtype=_accumulated(q))
    for block, keys, scores, seen in _scored(q, k, mask, causal, scale):
        most = scores.amax(-1, keepdim=True)
        most.masked_fill_(most == HIDDEN, 0.0)
        weights = _weights(scores, most, seen)
        total = weights.sum(-1, keepdim=True)
        total.masked_fill_(total == 0.0, 1.0)
        sums[block] = (most + total.log()).squeeze(-1)
        out[block] = (weights.mul_(drops(block, weights)) @ _wide(v[keys])).div_(total).to(q.dtype)
    return out, sums, state


def backward(
    source: Source, d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, out: Tensor, sums: Tensor,
    state: Tensor, probability: float, causal: bool, scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The derivatives of q, k and v."""
    drops = source(state, (*q.shape[:3], k.shape[2]), probability)
    d_q, d_k, d_v = (_like(t, t.shape[3], _accumulated(q)).zero_() for t in (q, k, v))
    for block, keys, scores, seen in _scored(q, k, mask, causal, scale):
        weights, gradient = _weights(scores, sums[block].unsqueeze(-1), seen), _wide(d_out[block])
        dropped = drops(block, weights)
        d_scores = (gradient @ _wide(v[keys]).transpose(-1, -2)).mul_(dropped)
        d_v[keys] += dropped.mul_(weights).transpose(-1, -2) @ gradient
        d_scores.sub_((gradient * _wide(out[block])).sum(-1, keepdim=True)).mul_(weights).mul_(_times(q, scale))
        d_q[block] = d_scores @ _wide(k[keys])
        d_k[keys] += d_scores.transpose(-1, -2) @ _wide(q[block])
    return d_q.to(q.dtype), d_k.to(q.dtype), d_v.to(q.dtype)


def _scored(
    q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, scale: float | None
) -> Iterator[tuple[Block, Block, Tensor, Tensor | None]]:
    """Blocks, the keys that each looks at, its scores, masked, and 1 for those that are seen, where some are not."""
    mask = None if mask is None else mask.expand(*q.shape[:3], k.shape[2])
    for block in _blocks(q, k):
        samples, heads, places = block
        keys = samples, heads, slice(0, min(places.stop, k.shape[2]) if causal else k.shape[2])
        scores = (_wide(q[block]) * _times(q, scale)) @ _wide(k[keys]).transpose(-1, -2)
        seen = None
        if mask is not None:
            scores += mask[block]
            seen = (scores > HIDDEN).to(scores.dtype)
        if causal:
            later = torch.full(scores.shape[-2:], HIDDEN, dtype=scores.dtype, device=scores.device)
            scores += later.triu_(places.start + 1)
            seen = (later == 0.0).to(scores.dtype)
        yield block, keys, scores, seen


def _weights(scores: Tensor, most: Tensor, seen: Tensor | None) -> Tensor:
    """exp(scores - most), in their place. An exponential of numbers so low that it is 0, or nearly, takes up to two
    hundred times as long."""
    weights = scores.sub_(most).clamp_(min=LOWEST).exp_()
    return weights if seen is None else weights.mul_(seen)


def _blocks(q: Tensor, k: Tensor) -> Iterator[Block]:
    several, heads, queries, _ = q.shape
    cuts = zip(q.shape, block_extents(several, heads, queries, k.shape[2], ROOM), strict=False)
    a, b, c = ([slice(i, i + step) for i in range(0, extent, step)] for extent, step in cuts)
    yield from product(a, b, c)


def _times(q: Tensor, scale: float | None) -> float:
    return float(q.shape[-1] ** -0.5) if scale is None else scale


def _accumulated(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype is torch.float64 else torch.float32


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(_accumulated(tensor))


def _like(tensor: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Room for (B, H, S, width), heads behind places, as torch's kernels leave it."""
    b, h, s, _ = tensor.shape
    return tensor.new_empty(b, s, h, width, dtype=dtype).transpose(1, 2)


def _eager(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, probability: float, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    source, state = EAGER.get()
    state = new_state(q.device) if state is None else state
    return forward(source, state, q, k, v, mask, probability, causal, scale)


def _eager_backward(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, out: Tensor, sums: Tensor, state: Tensor,
    probability: float, causal: bool, scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return backward(EAGER.get()[0], d_out, q, k, v, mask, out, sums, state, probability, causal, scale)


def _shapes(q: Tensor, _: Tensor, v: Tensor, *__: Any) -> tuple[Tensor, Tensor, Tensor]:
    sums = q.new_empty(q.shape[:3], dtype=_accumulated(q))
    return _like(q, v.shape[3], q.dtype), sums, q.new_empty(2, dtype=torch.int64)


def _backward_shapes(_: Tensor, q: Tensor, k: Tensor, v: Tensor, *__: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _like(q, q.shape[3], q.dtype), _like(k, k.shape[3], q.dtype), _like(v, v.shape[3], q.dtype)


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, mask, *ctx.told = inputs
    ctx.save_for_backward(q, k, v, mask, *output)


def _differentiate(ctx: Any, d_out: Tensor, *_: Any) -> Any:
    back = getattr(torch.ops.partita, f"{NAME}_backward")
    return *back(d_out, *ctx.saved_tensors, *ctx.told), None, None, None, None


def _register() -> None:
    read = "Tensor q, Tensor k, Tensor v, Tensor? mask"
    made = library.custom_op(
        f"partita::{NAME}", _eager, mutates_args=(), schema=f"({read}, {TOLD}) -> (Tensor, Tensor, Tensor)",
        tags=(torch.Tag.nondeterministic_seeded,),
    )  # fmt: skip
    made.register_fake(_shapes)
    made.register_autograd(_differentiate, setup_context=_save)
    read = f"Tensor d_out, {read}, Tensor out, Tensor sums, Tensor state"
    back = library.custom_op(
        f"partita::{NAME}_backward", _eager_backward, mutates_args=(),
        schema=f"({read}, {TOLD}) -> (Tensor, Tensor, Tensor)",
    )  # fmt: skip
    back.register_fake(_backward_shapes)


_register()
