"""Operators kept whole: torch.lstm would be traced into its time steps, three times slower than the fused kernel.

Importing this file registers `partita::lstm_layer` and `partita::lstm_layer_backward` (one layer, one direction) with
torch.library. On CPU in fp32 and bf16 they run oneDNN's layer, as eager does; anything else runs the recurrence
(Hochreiter & Schmidhuber, 1997; gates in torch's order i, f, g, o) step by step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

LSTM = 2
WORKSPACE = 72


class Fused(TorchFunctionMode):
    """Inside, torch.lstm and dropout make calls that stay one operator when traced."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.lstm and not kwargs and len(args) == 9 and _plain_lstm(*args):
            return lstm(*args)
        if func is torch.nn.functional.dropout:
            return _dropout(func, *args, **kwargs)
        return func(*args, **kwargs)


def _dropout(eager: Any, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if inplace or not training or not 0.0 < p < 1.0:
        result: Tensor = eager(input, p, training, inplace)
        return result
    return torch.native_dropout(input, p, True)[0]


def _plain_lstm(value: Tensor, states: Any, weights: Any, biases: bool, layers: int, *rest: Any) -> bool:
    """Whether it is a padded LSTM without projections: weights come as (input, hidden[, two biases]) per direction."""
    directions = 2 if rest[2] else 1
    return isinstance(states, tuple | list) and len(weights) == layers * directions * (4 if biases else 2)


def lstm(
    value: Tensor,
    states: Any,
    weights: Any,
    biases: bool,
    layers: int,
    probability: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """torch.lstm by layers and directions; same arguments, same results."""
    value = value.transpose(0, 1) if batch_first else value
    hidden, cell, step, directions = [], [], 4 if biases else 2, 2 if bidirectional else 1
    for layer in range(layers):
        outs = []
        for direction in range(directions):
            k = layer * directions + direction
            w = list(weights[k * step : (k + 1) * step])
            w += [] if biases else [value.new_zeros(w[0].shape[0])] * 2
            out, h, c, _ = torch.ops.partita.lstm_layer(value, *w, states[0][k], states[1][k], bool(direction))
            outs.append(out)
            hidden.append(h)
            cell.append(c)
        value = torch.cat(outs, -1) if bidirectional else outs[0]
        if probability and train and layer < layers - 1:
            value = torch.native_dropout(value, probability, True)[0]
    return value.transpose(0, 1) if batch_first else value, torch.stack(hidden), torch.stack(cell)


def _onednn(value: Tensor) -> bool:
    known = value.dtype in (torch.float32, torch.bfloat16)
    return value.device.type == "cpu" and known and torch._C._has_mkldnn


def _forward(
    value: Tensor, w_in: Tensor, w_hidden: Tensor, b_in: Tensor, b_hidden: Tensor, h: Tensor, c: Tensor, reverse: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(output (T, B, H), last hidden (B, H), last cell (B, H), workspace bytes) of one direction of one layer."""
    if _onednn(value):
        with torch.enable_grad():  # without it the workspace is left out
            out, last, cell, space = torch.ops.aten.mkldnn_rnn_layer(
                value.contiguous(), w_in, w_hidden, b_in, b_hidden, h.contiguous(), c.contiguous(), reverse, [], LSTM,
                w_hidden.shape[1], 1, True, False, False, True,
            )  # fmt: skip
        return out, last, cell, space
    inputs = value @ w_in.T + b_in + b_hidden
    steps, outs, saved = range(len(value)), [value] * len(value), [value] * len(value)
    for t in reversed(steps) if reverse else steps:
        i, f, g, o = (inputs[t] + h @ w_hidden.T).chunk(4, -1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        saved[t] = torch.cat([i, f, g, o, c], -1)
        c = f * c + i * g
        h = o * c.tanh()
        outs[t] = h
    return torch.stack(outs), h.clone(), c.clone(), torch.stack(saved).view(torch.uint8).flatten()


def _forward_shapes(
    value: Tensor, w_in: Tensor, w_hidden: Tensor, b_in: Tensor, b_hidden: Tensor, h: Tensor, c: Tensor, reverse: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `_forward`; the bytes of oneDNN's workspace are an estimate (it pads)."""
    steps, batch, size = value.shape[0], value.shape[1], w_hidden.shape[1]
    space = WORKSPACE if _onednn(value) else 5 * value.element_size()
    return (
        value.new_empty(steps, batch, size),
        torch.empty_like(h),
        torch.empty_like(c),
        value.new_empty(steps * batch * size * space, dtype=torch.uint8),
    )


def _backward(
    value: Tensor, w_in: Tensor, w_hidden: Tensor, b_in: Tensor, b_hidden: Tensor, h: Tensor, c: Tensor, out: Tensor,
    last: Tensor, cell: Tensor, space: Tensor, d_out: Tensor, d_last: Tensor, d_cell: Tensor, reverse: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of value, the two weights, the two biases, the first hidden and the first cell."""
    if _onednn(value):
        got = torch.ops.aten.mkldnn_rnn_layer_backward(
            value.contiguous(), w_in, w_hidden, b_in, b_hidden, h.contiguous(), c.contiguous(), out, last, cell,
            d_out.contiguous(), d_last.contiguous(), d_cell.contiguous(), reverse, LSTM, w_hidden.shape[1], 1, True,
            True, False, [], False, space,
        )  # fmt: skip
        return got[0], got[1], got[2], got[3], got[4].clone(), got[5], got[6]
    size, steps = w_hidden.shape[1], range(len(value))
    saved, d_gates = space.view(value.dtype).view(len(value), value.shape[1], 5 * size), [value] * len(value)
    for t in steps if reverse else reversed(steps):
        i, f, g, o, before = torch.split(saved[t], size, -1)
        tanh = (f * before + i * g).tanh()
        d_h = d_out[t] + d_last
        d_c = d_cell + d_h * o * (1 - tanh * tanh)
        parts = d_c * g * i * (1 - i), d_c * before * f * (1 - f), d_c * i * (1 - g * g), d_h * tanh * o * (1 - o)
        d_gates[t] = torch.cat(parts, -1)
        d_last, d_cell = d_gates[t] @ w_hidden, d_c * f
    d_all = torch.stack(d_gates)
    flat = d_all.flatten(0, 1)
    before = torch.cat([out[1:], h[None]]) if reverse else torch.cat([h[None], out[:-1]])
    d_bias = flat.sum(0)
    d_weights = flat.T @ value.flatten(0, 1), flat.T @ before.flatten(0, 1)
    return d_all @ w_in, *d_weights, d_bias, d_bias.clone(), d_last.clone(), d_cell.clone()


def _backward_shapes(*tensors: Any) -> tuple[Tensor, ...]:
    return tuple(t.new_empty(t.shape) for t in tensors[:7])


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.reverse, ctx.space = inputs[-1], output[3]
    ctx.save_for_backward(*inputs[:-1], *output[:3])


def _differentiate(ctx: Any, *grads: Tensor | None) -> Any:
    saved = ctx.saved_tensors
    d = [torch.zeros_like(saved[7 + k]) if grad is None else grad for k, grad in enumerate(grads[:3])]
    return *torch.ops.partita.lstm_layer_backward(*saved, ctx.space, *d, ctx.reverse), None


lstm_layer = torch.library.custom_op("partita::lstm_layer", _forward, mutates_args=())
lstm_layer.register_fake(_forward_shapes)
lstm_layer.register_autograd(_differentiate, setup_context=_save)
lstm_layer_backward = torch.library.custom_op("partita::lstm_layer_backward", _backward, mutates_args=())
lstm_layer_backward.register_fake(_backward_shapes)
