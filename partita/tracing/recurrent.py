"""`partita::lstm_layer`, `partita::gru_layer` and their backwards: one layer, one direction, as one operator.

Importing this file registers them with torch. An LSTM on CPU in fp32, and in bf16 where it can, runs oneDNN's layer,
both on CUDA cuDNN's, as eager does; anything else runs the recurrence step by step (LSTM: Hochreiter & Schmidhuber,
1997; GRU: Cho et al., 2014, in torch's form; gates in torch's order). Where a processor has no kernel for a short
dtype, both run in fp32 inside, and what they make but the workspace is rounded.

    layer(value (T, B, I), w_in, w_hidden, b_in, b_hidden, states (B, H) each, reverse)
        -> output (T, B, H), last states, workspace bytes
    layer_backward(all of these but the flag, workspace, gradients of output and last states, reverse)
        -> gradients of value, weights, biases, first states
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, library

from partita.cost.scratch import row_stride

LSTM: Final = 2
CUDNN: Final = {"lstm": 2, "gru": 3}  # the modes of cuDNN's layers, whose gates are in torch's order
LEAVES: Final = 5  # value, two weights, two biases
SHORT: Final = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Cell:
    """A step and its derivative. `states` counts what goes from step to step, the output first; `kept` the tensors
    (B, H) that a step keeps for backward; `joint`: both sums below have the same gradients.

    `step(x, y, states) -> (states, kept)` has x = W x + b of the input and y that of the hidden state;
    `back(kept, before, d_states) -> (d_x, d_y, d_states)` has the hidden state before the step.
    """

    name: str
    states: int
    kept: int
    joint: bool
    step: Callable[[Tensor, Tensor, list[Tensor]], tuple[list[Tensor], list[Tensor]]]
    back: Callable[[tuple[Tensor, ...], Tensor, list[Tensor]], tuple[Tensor, Tensor, list[Tensor]]]


def _lstm_step(x: Tensor, y: Tensor, states: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    i, f, g, o = (x + y).chunk(4, -1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    c = f * states[1] + i * g
    return [o * c.tanh(), c], [i, f, g, o, states[1]]


def _lstm_back(kept: tuple[Tensor, ...], before: Tensor, d_states: list[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
    i, f, g, o, c = kept
    d_h, tanh = d_states[0], (f * c + i * g).tanh()
    d_c = d_states[1] + d_h * o * (1 - tanh * tanh)
    parts = d_c * g * i * (1 - i), d_c * c * f * (1 - f), d_c * i * (1 - g * g), d_h * tanh * o * (1 - o)
    d_gates = torch.cat(parts, -1)
    return d_gates, d_gates, [torch.zeros_like(d_h), d_c * f]


def _gru_step(x: Tensor, y: Tensor, states: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    (r, z, n), (hidden_r, hidden_z, hidden) = x.chunk(3, -1), y.chunk(3, -1)
    r, z = (r + hidden_r).sigmoid(), (z + hidden_z).sigmoid()
    n = (n + r * hidden).tanh()
    return [(1 - z) * n + z * states[0]], [r, z, n, hidden]


def _gru_back(kept: tuple[Tensor, ...], before: Tensor, d_states: list[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
    (r, z, n, hidden), d_h = kept, d_states[0]
    d_n = d_h * (1 - z) * (1 - n * n)
    d_r, d_z = d_n * hidden * r * (1 - r), d_h * (before - n) * z * (1 - z)
    return torch.cat([d_r, d_z, d_n], -1), torch.cat([d_r, d_z, d_n * r], -1), [d_h * z]


CELLS: Final = (Cell("lstm", 2, 5, True, _lstm_step, _lstm_back), Cell("gru", 1, 4, False, _gru_step, _gru_back))


def _onednn(cell: Cell, value: Tensor) -> bool:
    """Whether oneDNN has the layer here; in bf16 it asks for AVX-512."""
    short = value.dtype is torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    known = (value.dtype is torch.float32 or short) and cell.name == "lstm"
    return value.device.type == "cpu" and known and torch._C._has_mkldnn


def _cudnn(cell: Cell, value: Tensor) -> bool:
    known = value.dtype in (torch.float32, torch.bfloat16, torch.float16)
    return value.device.type == "cuda" and known and cell.name in CUDNN and torch._C._has_cudnn


def _widens(cell: Cell, value: Tensor) -> bool:
    """Whether a layer runs in fp32 inside."""
    return value.device.type == "cpu" and value.dtype in SHORT and not _onednn(cell, value)


def _wide(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The floats among them in fp32; a workspace as it is."""
    return tuple(t.float() if t.is_floating_point() else t for t in tensors)


def _turned(value: Tensor, reverse: bool) -> Tensor:
    """In the order in which cuDNN's one direction goes."""
    return value.flip(0) if reverse else value


def cudnn_forward(cell: Cell, *tensors: Tensor, reverse: bool) -> tuple[Tensor, ...]:
    """The operator `layer` by cuDNN."""
    value, w_in, w_hidden, b_in, b_hidden, *states = tensors
    first = [state.contiguous().unsqueeze(0) for state in states]
    out, h, c, space, _ = torch.ops.aten._cudnn_rnn(
        _turned(value, reverse).contiguous(), [w_in, w_hidden, b_in, b_hidden], 4, None, first[0],
        first[1] if cell.states > 1 else None, CUDNN[cell.name], w_hidden.shape[1], 0, 1, False, 0.0, True, False, [],
        None,
    )  # fmt: skip
    return _turned(out, reverse), *(state.squeeze(0).clone() for state in (h, c)[: cell.states]), space


def cudnn_backward(
    cell: Cell, leaves: Sequence[Tensor], out: Tensor, space: Tensor, d_out: Tensor, d_states: Sequence[Tensor],
    reverse: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The operator `layer_backward` by cuDNN, of the `leaves` that `cudnn_forward` read."""
    value, w_in, w_hidden, b_in, b_hidden, *states = leaves
    weights, both = [w.detach() for w in (w_in, w_hidden, b_in, b_hidden)], cell.states > 1  # flattening moves them
    first, last = ([state.contiguous().unsqueeze(0) for state in each] for each in (states, d_states))
    buffer = torch.ops.aten._cudnn_rnn_flatten_weight(
        weights, 4, value.shape[2], CUDNN[cell.name], w_hidden.shape[1], 0, 1, False, False
    )
    d_value, d_h, d_c, d_weights = torch.ops.aten._cudnn_rnn_backward(
        _turned(value, reverse).contiguous(), weights, 4, buffer, first[0], first[1] if both else None,
        _turned(out, reverse).contiguous(), _turned(d_out, reverse).contiguous(), last[0], last[1] if both else None,
        CUDNN[cell.name], w_hidden.shape[1], 0, 1, False, 0.0, True, False, [], None, space, [True, True, both, True],
    )  # fmt: skip
    d_first = (d_h.squeeze(0), d_c.squeeze(0)) if both else (d_h.squeeze(0),)
    return _turned(d_value, reverse), *(d.clone() for d in d_weights), *d_first


def layer_forward(cell: Cell, *tensors: Tensor, reverse: bool) -> tuple[Tensor, ...]:
    """The operator `layer` of a cell, by the quickest kernel that there is."""
    value, w_in, w_hidden, b_in, b_hidden, *states = tensors
    if _cudnn(cell, value):
        return cudnn_forward(cell, *tensors, reverse=reverse)
    if _widens(cell, value):
        *found, space = layer_forward(cell, *_wide(tensors), reverse=reverse)
        return *(each.to(value.dtype) for each in found), space
    if _onednn(cell, value):
        with torch.enable_grad():  # without it the workspace is left out
            made: tuple[Tensor, ...] = torch.ops.aten.mkldnn_rnn_layer(
                value.contiguous(), w_in, w_hidden, b_in, b_hidden, *(s.contiguous() for s in states), reverse, [],
                LSTM, w_hidden.shape[1], 1, True, False, False, True,
            )  # fmt: skip
        return made
    inputs, (count, batch), size = (value @ w_in.T).add_(b_in), value.shape[:2], w_hidden.shape[1]
    steps, outs = range(count), value.new_empty(count, batch, size)
    saved = value.new_empty(count, batch, cell.kept * size)
    for t in reversed(steps) if reverse else steps:
        states, kept = cell.step(inputs[t], states[0] @ w_hidden.T + b_hidden, states)
        outs[t] = states[0]
        torch.cat(kept, -1, out=saved[t])
    return outs, *(s.clone() for s in states), saved.view(torch.uint8).flatten()


def workspace(steps: int, inputs: int, size: int) -> int:
    """Bytes a sample that oneDNN's LSTM layer (torch 2.13) keeps for backward: of each step the gates and a product by
    them, of each state before and after a step the cell's and six copies of what is wider, input or output."""
    states = (steps + 1) * (4 * size + 6 * row_stride(max(inputs, size)))
    return 4 * (steps * (row_stride(4 * size) + row_stride(size)) + states)


def _forward_shapes(cell: Cell, *tensors: Tensor, reverse: bool) -> tuple[Tensor, ...]:
    """As `layer_forward`; oneDNN's workspace has some kB more, up to a page for each of its parts."""
    value, _, w_hidden, _, _, *states = tensors
    steps, batch, size = value.shape[0], value.shape[1], w_hidden.shape[1]
    inside = value.float() if _widens(cell, value) else value
    kept = steps * size * cell.kept * inside.element_size()
    each = workspace(steps, value.shape[2], size) if _onednn(cell, inside) else kept
    return (
        value.new_empty(steps, batch, size),
        *(torch.empty_like(s) for s in states),
        value.new_empty(batch * each, dtype=torch.uint8),
    )


def layer_backward(cell: Cell, *tensors: Tensor, reverse: bool) -> tuple[Tensor, ...]:
    """The operator `layer_backward` of a cell, by the kernel that `layer_forward` took."""
    read = LEAVES + cell.states
    value, w_in, w_hidden, b_in, b_hidden, *first = tensors[:read]
    out, space, d_out = tensors[read], tensors[read + 1 + cell.states], tensors[read + 2 + cell.states]
    last, d_states = tensors[read + 1 : read + 1 + cell.states], list(tensors[-cell.states :])
    if _widens(cell, value):
        return tuple(each.to(value.dtype) for each in layer_backward(cell, *_wide(tensors), reverse=reverse))
    if _onednn(cell, value):
        got = torch.ops.aten.mkldnn_rnn_layer_backward(
            value.contiguous(), w_in, w_hidden, b_in, b_hidden, *(s.contiguous() for s in first), out, *last,
            d_out.contiguous(), *(d.contiguous() for d in d_states), reverse, LSTM, w_hidden.shape[1], 1, True, True,
            False, [], False, space,
        )  # fmt: skip
        made = got[0], got[1], got[2], got[3], got[4].clone(), got[5], got[6]
        return tuple(each.to(value.dtype) for each in made)  # of bf16 it makes fp32
    if _cudnn(cell, value):
        return cudnn_backward(cell, tensors[:read], out, space, d_out, d_states, reverse)
    size, steps = w_hidden.shape[1], range(len(value))
    saved = space.view(value.dtype).view(len(value), value.shape[1], cell.kept * size)
    before = torch.cat([out[1:], first[0][None]]) if reverse else torch.cat([first[0][None], out[:-1]])
    d_x = value.new_empty(*value.shape[:2], len(w_in))
    d_y = d_x if cell.joint else torch.empty_like(d_x)
    for t in steps if reverse else reversed(steps):
        d_states[0] = d_states[0] + d_out[t]
        d_x[t], d_y[t], d_states = cell.back(torch.split(saved[t], size, -1), before[t], d_states)
        d_states[0] = d_states[0] + d_y[t] @ w_hidden
    flat, hidden = d_x.flatten(0, 1), d_y.flatten(0, 1)
    d_weights = flat.T @ value.flatten(0, 1), hidden.T @ before.flatten(0, 1)
    return d_x @ w_in, *d_weights, flat.sum(0), hidden.sum(0), *(d.clone() for d in d_states)


def _register(cell: Cell) -> None:
    """Both operators of a cell, and how torch differentiates the first."""
    states = [f"h{k}" for k in range(cell.states)]
    leaves = ["value", "w_in", "w_hidden", "b_in", "b_hidden", *states]
    ends = ["out", *(f"last{k}" for k in range(cell.states))]
    name, count = f"partita::{cell.name}_layer", len(leaves)

    def schema(arguments: list[str], results: int) -> str:
        made = ", ".join(["Tensor"] * results)
        return f"({', '.join(f'Tensor {a}' for a in arguments)}, bool reverse) -> ({made})"

    def forward(*arguments: Any) -> tuple[Tensor, ...]:
        return layer_forward(cell, *arguments[:-1], reverse=arguments[-1])

    def forward_shapes(*arguments: Any) -> tuple[Tensor, ...]:
        return _forward_shapes(cell, *arguments[:-1], reverse=arguments[-1])

    def backward(*arguments: Any) -> tuple[Tensor, ...]:
        return layer_backward(cell, *arguments[:-1], reverse=arguments[-1])

    def backward_shapes(*arguments: Any) -> tuple[Tensor, ...]:
        return tuple(t.new_empty(t.shape) for t in arguments[:count])

    def save(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.reverse, ctx.space = inputs[-1], output[-1]
        ctx.save_for_backward(*inputs[:-1], *output[:-1])

    def differentiate(ctx: Any, *grads: Tensor | None) -> Any:
        saved = ctx.saved_tensors
        made = zip(saved[count:], grads, strict=False)
        d = [torch.zeros_like(tensor) if grad is None else grad for tensor, grad in made]
        return *getattr(torch.ops.partita, f"{cell.name}_layer_backward")(*saved, ctx.space, *d, ctx.reverse), None

    layer = library.custom_op(name, forward, mutates_args=(), schema=schema(leaves, len(ends) + 1))
    layer.register_fake(forward_shapes)
    layer.register_autograd(differentiate, setup_context=save)
    arguments = [*leaves, *ends, "space", *(f"d_{end}" for end in ends)]
    derivative = library.custom_op(f"{name}_backward", backward, mutates_args=(), schema=schema(arguments, count))
    derivative.register_fake(backward_shapes)


for _cell in CELLS:
    _register(_cell)
