"""Operators whose dimensions all divide alike: pointwise, copies, filled tensors."""

from __future__ import annotations

from typing import Final

from partita.graph.formula import Call, Inputs, formula
from partita.graph.pattern import Axes, Pattern
from partita.graph.tensor import Tensor

ALIASES: Final = frozenset(f"aten.{name}" for name in ("detach", "alias", "lift_fresh"))
COPIES: Final = ALIASES | frozenset(
    f"aten.{name}"
    for name in ("clone", "_to_copy", "copy", "lift_fresh_copy", "contiguous", "empty_like", "zeros_like")
)
NAMES: Final = """
    abs acos acosh add addcdiv addcmul angle asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not
    bitwise_or bitwise_right_shift bitwise_xor ceil celu clamp clamp_max clamp_min clip copysign cos cosh deg2rad
    digamma div elu elu_backward eq erf erfc erfinv exp exp2 expm1 fill floor floor_divide fmax fmin fmod frac ge gelu
    gelu_backward gt hardshrink hardsigmoid hardsigmoid_backward hardswish hardswish_backward hardtanh hardtanh_backward
    heaviside hypot isfinite isinf isnan isneginf isposinf le leaky_relu leaky_relu_backward lerp lgamma log log10 log1p
    log2 log_sigmoid_backward log_sigmoid_forward logaddexp logaddexp2 logical_and logical_not logical_or logical_xor
    logit lt masked_fill maximum minimum mish mish_backward mul nan_to_num native_dropout native_dropout_backward ne neg
    positive pow rad2deg reciprocal relu relu6 remainder round rsqrt rsub selu sgn sigmoid sigmoid_backward sign signbit
    silu silu_backward sin sinc sinh softplus softplus_backward softshrink sqrt square sub tan tanh tanh_backward
    threshold threshold_backward true_divide trunc where xlogy full_like ones_like rand_like randn_like bernoulli
"""
POINTWISE: Final = frozenset(f"aten.{name}" for name in NAMES.split()) | COPIES | {"partita.dropout", "partita.random"}
SIZED: Final = {
    f"aten.{name}": 0 for name in ("zeros", "ones", "full", "empty", "rand", "randn", "arange", "scalar_tensor")
} | {f"aten.{name}": 1 for name in ("new_zeros", "new_ones", "new_full", "new_empty")}  # place of the sizes


def dims(tensor: Tensor | None, letter: str = "a") -> list[str]:
    """One name a dimension."""
    return [] if tensor is None else [f"{letter}{place}" for place in range(len(tensor.shape))]


def broadcast(names: list[str], whole: Tensor, tensor: Tensor) -> Axes | None:
    """The axes of `tensor` where it meets `whole` aligned at the last dimension; None where it does not fit."""
    offset = len(whole.shape) - len(tensor.shape)
    if offset < 0:
        return None
    pairs = zip(names[offset:], whole.shape[offset:], tensor.shape, strict=True)
    return tuple((name,) if have == full and have != 1 else () for name, full, have in pairs)


def pointwise(call: Call) -> Pattern | None:
    """Every output element depends on one element of each input, or on one that is broadcast."""
    out = call.output()
    if out is None:
        return None
    names = dims(out)
    found = {path: broadcast(names, out, call.graph.tensor(ref)) for path, ref in call.reads()}
    inputs: Inputs = {path: labels for path, labels in found.items() if labels is not None}
    whole: Axes = tuple((name,) for name in names)
    return formula(
        call, inputs, [whole if t is not None and len(t.shape) == len(whole) else None for t in call.operator.outputs],
        work="" if call.kind in COPIES else f"1 {' '.join(names)}",
    )  # fmt: skip


def filled(call: Call) -> Pattern | None:
    """A tensor of numbers: any shard of it can be made in place, an arange's with an offset."""
    names, place = dims(call.output()), SIZED[call.kind]
    sizes = call.argument(place)
    extents = [((place, k), name) for k, name in enumerate(names)] if isinstance(sizes, tuple) else []
    return formula(
        call, {}, [" ".join(names)], extents=extents, locked=" ".join(names) if call.kind == "aten.arange" else ""
    )  # fmt: skip


def assertion(call: Call) -> Pattern | None:
    """A check that makes nothing; its dimensions divide as they like."""
    read = call.tensor(0)
    return formula(call, {0: " ".join(dims(read))}, [None])
