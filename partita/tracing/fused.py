"""Operators that are kept whole: torch.lstm and torch.gru.

Traced into their time steps they would be three times slower than a fused kernel; `recurrent` computes each layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import partita.tracing.recurrent  # noqa: F401  registers the layers


class Fused(TorchFunctionMode):
    """Inside, torch.lstm, torch.gru and dropout make calls that stay one operator when traced."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.lstm and not kwargs and len(args) == 9 and _plain(*args):
            return recurrent(torch.ops.partita.lstm_layer, *args)
        if func is torch.gru and not kwargs and len(args) == 9 and isinstance(args[1], Tensor):
            return recurrent(torch.ops.partita.gru_layer, args[0], (args[1],), *args[2:])
        if func is torch.nn.functional.dropout:
            return _dropout(func, *args, **kwargs)
        return func(*args, **kwargs)


def _dropout(eager: Any, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if inplace or not training or not 0.0 < p < 1.0:
        result: Tensor = eager(input, p, training, inplace)
        return result
    return torch.native_dropout(input, p, True)[0]


def _plain(value: Tensor, states: Any, weights: Any, biases: bool, layers: int, *rest: Any) -> bool:
    """Whether it is a padded LSTM without projections: weights come as (input, hidden[, two biases]) per direction."""
    directions = 2 if rest[2] else 1
    return isinstance(states, tuple | list) and len(weights) == layers * directions * (4 if biases else 2)


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
