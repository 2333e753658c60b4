"""Operators that are kept whole: torch.lstm, torch.gru, attention with dropout, and CTC's loss.

Traced into time steps a recurrent layer would be three times slower than a fused kernel; `recurrent` computes each.
Attention that drops weights would be traced into products of all scores, which a card has one kernel for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

import partita.tracing.recurrent  # noqa: F401  registers the layers
from partita.tracing.ctc import ctc_loss
from partita.tracing.dropped_attention import NAME

ATTENTION: Final = functional.scaled_dot_product_attention
RANK: Final = 4  # (B, H, L, D)


class Fused(TorchFunctionMode):
    """Inside, torch.lstm, torch.gru, dropout, attention that drops weights and CTC's loss are one operator each when
    traced."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.lstm and not kwargs and len(args) == 9 and _plain(*args):
            return recurrent(torch.ops.partita.lstm_layer, *args)
        if func is torch.gru and not kwargs and len(args) == 9 and _plain(*args):
            return recurrent(torch.ops.partita.gru_layer, args[0], (args[1],), *args[2:])
        if func is functional.dropout:
            return _dropout(func, *args, **kwargs)
        if func is functional.ctc_loss or func is torch.ctc_loss:
            return ctc_loss(func, *args, **kwargs)
        if func is ATTENTION:
            return _attention(*args, **kwargs)
        if func is functional.multi_head_attention_forward:  # whose own calls no mode sees
            with mock.patch.object(functional, ATTENTION.__name__, _attention):
                return func(*args, **kwargs)
        return func(*args, **kwargs)


def _dropout(eager: Any, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if inplace or not training or not 0.0 < p < 1.0:
        result: Tensor = eager(input, p, training, inplace)
        return result
    return torch.native_dropout(input, p, True)[0]


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """torch's, as one operator where weights are dropped and nothing is broadcast or learned but q, k and v."""
    plain: Callable[[], Tensor] = partial(
        ATTENTION, query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    alike = not query.is_nested and query.dim() == key.dim() == value.dim() == RANK
    learned = attn_mask is not None and (attn_mask.requires_grad or is_causal)
    if not 0.0 < dropout_p < 1.0 or not alike or learned:
        return plain()
    if enable_gqa:
        key, value = (t.repeat_interleave(query.shape[1] // t.shape[1], 1) for t in (key, value))
    if not query.shape[:2] == key.shape[:2] == value.shape[:2] or not query.dtype == key.dtype == value.dtype:
        return plain()
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, float("-inf"))
    made = getattr(torch.ops.partita, NAME)(query, key, value, attn_mask, dropout_p, is_causal, scale)
    return made[0]  # type: ignore[no-any-return]


def _plain(value: Tensor, states: Any, weights: Any, biases: Any, layers: int, *rest: Any) -> bool:
    """Whether sequences are padded (of packed ones their weights stand where `biases` does) and nothing is projected:
    weights come as (input, hidden[, two biases]) per direction."""
    directions = 2 if rest[2] else 1
    return isinstance(biases, bool) and len(weights) == layers * directions * (4 if biases else 2)


def recurrent(
    layer_of: Any,
    value: Tensor,
    states: Any,
    weights: Any,
    biases: bool,
    layers: int,
    probability: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """torch.lstm or torch.gru by layers and directions; same arguments (`states` a tuple), same results."""
    value = value.transpose(0, 1) if batch_first else value
    step, directions = 4 if biases else 2, 2 if bidirectional else 1
    ends: list[list[Tensor]] = [[] for _ in states]
    for layer in range(layers):
        outs = []
        for direction in range(directions):
            k = layer * directions + direction
            w = list(weights[k * step : (k + 1) * step])
            w += [] if biases else [value.new_zeros(w[0].shape[0])] * 2
            out, *last, _ = layer_of(value, *w, *(state[k] for state in states), bool(direction))
            outs.append(out)
            for end, one in zip(ends, last, strict=True):
                end.append(one)
        value = torch.cat(outs, -1) if bidirectional else outs[0]
        if probability and train and layer < layers - 1:
            value = torch.native_dropout(value, probability, True)[0]
    return value.transpose(0, 1) if batch_first else value, *(torch.stack(end) for end in ends)
