"""Operators that move elements or only rename dimensions: reshape, permute, expand, slice, cat."""

from __future__ import annotations

from typing import Final

from partita.graph.formula import Call, Inputs, formula
from partita.graph.pattern import Axes, Pattern
from partita.graph.patterns_pointwise import ALIASES, broadcast, dims
from partita.graph.tensor import Affine, Dim

RESHAPES: Final = frozenset({"aten.view", "aten._unsafe_view", "aten.reshape", "aten.flatten", "aten._reshape_alias"})
SPLITS: Final = frozenset({"aten.split", "aten.split_with_sizes", "aten.chunk", "aten.unbind"})
MOVED: Final = frozenset(
    f"aten.{name}" for name in ("flip", "roll", "triu", "tril", "constant_pad_nd", "cumsum", "cumprod")
)
MAYBE_SAME: Final = frozenset({"aten.reshape", "aten.flatten"})  # where their input is contiguous
SAME_MEMORY: Final = (
    SPLITS
    | RESHAPES
    | ALIASES
    | frozenset(
        f"aten.{name}"
        for name in (
            "t",
            "transpose",
            "permute",
            "expand",
            "slice",
            "select",
            "unsqueeze",
            "squeeze",
            "diagonal",
            "unfold",
        )
    )
) - MAYBE_SAME


def _quotient(a: Dim, b: Dim) -> Dim | None:
    """a / b where it is whole: numbers and multiples of the batch."""
    if a == b:
        return 1
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b and a % b == 0 else None
    if isinstance(a, Affine) and a.rest == 0:
        each = b if isinstance(b, int) else b.each if b.rest == 0 else 0
        if each and a.each % each == 0:
            return Affine(a.each // each) if isinstance(b, int) else a.each // each
    return None


def factored(before: tuple[Dim, ...], after: tuple[Dim, ...]) -> tuple[Axes, Axes, dict[str, Dim]]:
    """The labels that two shapes of one tensor share, and their sizes; (4, 6) -> (24,) gives `a b` and `(a b)`.

    Where no factor is shared the rest of both shapes stays without labels.
    """
    shapes = (before, after)
    found: tuple[list[tuple[str, ...]], list[tuple[str, ...]]] = ([()] * len(before), [()] * len(after))
    at, left, sizes = [-1, -1], list[Dim]((1, 1)), dict[str, Dim]()
    while True:
        for side in (0, 1):
            while left[side] == 1 and at[side] + 1 < len(shapes[side]):
                at[side] += 1
                left[side] = shapes[side][at[side]]
        more, less = _quotient(left[0], left[1]), _quotient(left[1], left[0])
        if 1 in left or (more is None and less is None):
            return tuple(found[0]), tuple(found[1]), sizes
        name = f"a{len(sizes)}"
        sizes[name] = left[0] if more is None else left[1]
        for side in (0, 1):
            found[side][at[side]] += (name,)
        left = [1, less or 1] if more is None else [more, 1]


def reshape(call: Call) -> Pattern | None:
    """Dimensions merge and divide; the outermost factor of each still shards."""
    before, out = call.tensor(0), call.output()
    if before is None or out is None:
        return None
    first, last, sizes = factored(before.shape, out.shape)
    given = call.argument(1)
    extents = [
        ((1, place), " ".join(labels))
        for place, labels in enumerate(last)
        if isinstance(given, tuple) and call.kind != "aten.flatten" and place < len(given) and given[place] != -1
    ]
    return formula(call, {0: first}, [last], sizes=sizes, extents=extents)


def is_alias(call: Call) -> bool:
    """Whether the outputs share the first input's memory; a reshape does where its input is contiguous."""
    if call.kind in SAME_MEMORY:
        return True
    read = call.tensor(0)
    return call.kind in MAYBE_SAME and read is not None and not read.strides


def permuted(call: Call) -> Pattern | None:
    """t, transpose and permute."""
    names = dims(call.tensor(0))
    order = list(range(len(names)))
    if call.kind == "aten.permute":
        order = [dim % len(names) for dim in call.integers(1)]
    elif len(names) > 1:
        one, two = (0, 1) if call.kind == "aten.t" else (call.integers(1)[0], call.integers(2)[0])
        order[one], order[two] = order[two], order[one]
    made = " ".join(names[dim] for dim in order)
    return formula(call, {0: " ".join(names)}, [made])


def expanded(call: Call) -> Pattern | None:
    """expand: dimensions of 1 are repeated, so a shard of a repeated one needs no shard of the input."""
    read, out = call.tensor(0), call.output()
    if read is None or out is None or (labels := broadcast(dims(out), out, read)) is None:
        return None
    given = call.argument(1)
    sizes = given if isinstance(given, tuple) else ()
    extents = [((1, place), name) for place, name in enumerate(dims(out)) if place < len(sizes) and sizes[place] != -1]
    return formula(call, {0: labels}, [" ".join(dims(out))], extents=extents)


def _dim(call: Call, place: int, rank: int) -> int:
    found = call.integers(place, 0)
    return (found[0] if found else 0) % max(rank, 1)


def unsqueezed(call: Call) -> Pattern | None:
    """unsqueeze and squeeze: the labels of what is not 1 carry over in order."""
    read, out = call.tensor(0), call.output()
    if read is None or out is None:
        return None
    first, last, sizes = factored(read.shape, out.shape)
    return formula(call, {0: first}, [last], sizes=sizes)


def chosen(call: Call) -> Pattern | None:
    """select, unbind, split, chunk and slice: the dimension that is cut stays whole, unless all of it is kept."""
    read, out = call.tensor(0), call.output()
    if read is None or out is None:
        return None
    names = dims(read)
    place = 1 if call.kind in ("aten.select", "aten.unbind", "aten.slice", "aten.diagonal") else 2
    dim = _dim(call, place, len(names))
    whole = len(out.shape) == len(names) and out.shape[dim] == read.shape[dim]
    made = [name if k != dim or whole else "." for k, name in enumerate(names)]
    if call.kind in ("aten.select", "aten.unbind"):
        made.pop(dim)
    return formula(
        call, {0: " ".join(names)}, [" ".join(made)] * len(call.operator.outputs),
        locked="" if whole else names[dim],
    )  # fmt: skip


def put_back(call: Call) -> Pattern | None:
    """slice_backward and select_backward: zeros of the sizes given, with the gradient in its place."""
    grad, out = call.tensor(0), call.output()
    if grad is None or out is None:
        return None
    names = dims(out)
    dim = _dim(call, 2, len(names))
    whole = len(grad.shape) == len(names) and grad.shape[dim] == out.shape[dim]
    read = [name if k != dim or whole else "." for k, name in enumerate(names)]
    if call.kind == "aten.select_backward":
        read.pop(dim)
    return formula(
        call, {0: " ".join(read)}, [" ".join(names)], locked="" if whole else names[dim],
        extents=[((1, k), name) for k, name in enumerate(names)],
    )  # fmt: skip


def joined(call: Call) -> Pattern | None:
    """cat and stack: the dimension that grows stays whole."""
    parts, out = call.argument(0), call.output()
    if out is None or not isinstance(parts, tuple):
        return None
    names = dims(out)
    dim = _dim(call, 1, len(names))
    stacked = call.kind == "aten.stack"
    read = [name for k, name in enumerate(names) if not (stacked and k == dim)]
    labels = " ".join("." if not stacked and name == names[dim] else name for name in read)
    inputs: Inputs = {(0, k): labels for k in range(len(parts))}
    return formula(call, inputs, [" ".join(names)], locked=names[dim])


def moved(call: Call) -> Pattern | None:
    """flip, roll, cumsum, triu, padding: the dimensions along which elements move stay whole."""
    read, out = call.tensor(0), call.output()
    if read is None or out is None:
        return None
    names = dims(out)
    if call.kind in ("aten.triu", "aten.tril"):
        whole = set(names[-2:])
    elif call.kind == "aten.constant_pad_nd":
        whole = {name for name, a, b in zip(names, read.shape, out.shape, strict=True) if a != b}
    else:
        rank = max(len(names), 1)
        whole = {names[dim % rank] for dim in call.integers(2 if call.kind == "aten.roll" else 1) if names}
    reads = " ".join("." if a != b else name for name, a, b in zip(names, read.shape, out.shape, strict=True))
    return formula(call, {0: reads}, [" ".join(names)], locked=" ".join(sorted(whole)))
