"""Normalisations, softmaxes and reductions: dimensions that are summed over midway or at the end."""

from __future__ import annotations

from typing import Final

from partita.graph.formula import Call, Inputs, formula
from partita.graph.pattern import Monoid, Pattern, Role
from partita.graph.patterns_pointwise import dims
from partita.graph.tensor import Tensor

MONOIDS: Final = {
    "aten.sum": Monoid.SUM, "aten.mean": Monoid.MEAN, "aten.amax": Monoid.MAX, "aten.amin": Monoid.MIN,
    "aten.any": Monoid.MAX, "aten.all": Monoid.MIN, "aten.logsumexp": Monoid.LOGSUMEXP, "aten.prod": Monoid.PRODUCT,
    "aten.histc": Monoid.SUM,
}  # fmt: skip
WHOLE: Final = frozenset(
    f"aten.{name}"
    for name in (
        "max", "min", "argmax", "argmin", "median", "sort", "topk",
        "var", "var_mean", "std", "linalg_vector_norm", "norm",
    )
)  # fmt: skip
NORM_WORK: Final = 5  # subtract, square, sum, scale, shift
SOFTMAX_WORK: Final = 4  # maximum, subtract, exponent, sum


def reduction(call: Call) -> Pattern | None:
    """sum, mean, amax and the like, over some dimensions or all; parts join by the reduction's own monoid.

    Where the monoid is not known (WHOLE) the reduced dimensions do not divide.
    """
    read, out = call.tensor(0), call.output()
    if read is None or out is None:
        return None
    names, rank = dims(read), max(len(read.shape), 1)
    over = {dim % rank for dim in call.integers(1)} or set(range(rank))
    if call.kind in ("aten.topk", "aten.sort"):
        place = 2 if call.kind == "aten.topk" else 1
        over = {(call.integers(place, -1) or (-1,))[0] % rank}
    if not names:
        over = set()
    kept = len(out.shape) == len(names) and bool(names)
    if call.kind == "aten.histc":
        over, made = set(range(rank)), "."
    else:
        made = " ".join("." if k in over else name for k, name in enumerate(names) if kept or k not in over)
    monoid = MONOIDS.get(call.kind)
    gone = [names[k] for k in sorted(over)]
    return formula(
        call, {0: " ".join(names)}, [made] * len(call.operator.outputs), work=f"1 {' '.join(names)}",
        locked="" if monoid else " ".join(gone), monoids={0: dict.fromkeys(gone, monoid)},
        roles=dict.fromkeys(gone, Role.REDUCE),
    )  # fmt: skip


def softmax(call: Call) -> Pattern | None:
    """softmax and log-softmax: parts of the dimension exchange a log-sum-exp (vocabulary-parallel loss)."""
    return _along(call, 0, 1, Monoid.LOGSUMEXP)


def softmax_backward(call: Call) -> Pattern | None:
    """(gradient, output, dim): parts exchange a sum."""
    return _along(call, 1, 2, Monoid.SUM)


def _along(call: Call, read: int, place: int, exchange: Monoid) -> Pattern | None:
    names = dims(call.tensor(read))
    if not names:
        return None
    along = names[(call.integers(place, -1) or (-1,))[0] % len(names)]
    text = " ".join(names)
    inputs: Inputs = dict.fromkeys(range(read + 1), text)
    return formula(
        call, inputs, [text], work=f"{SOFTMAX_WORK} {text}",
        exchange={along: exchange}, roles={along: Role.VOCABULARY},
    )  # fmt: skip


def _normalised(call: Call, place: int, count: int) -> tuple[list[str], list[str]]:
    """Names of the leading dimensions and of the `count` last ones, over which the norm runs."""
    read = call.tensor(place)
    rank = len(read.shape) if read else 0
    return [f"a{k}" for k in range(rank - count)], [f"f{k}" for k in range(count)]


def layer_norm(call: Call) -> Pattern | None:
    """native_layer_norm (input, shape, weight, bias) and _fused_rms_norm (input, shape, weight)."""
    given = call.argument(1)
    leading, features = _normalised(call, 0, len(given) if isinstance(given, tuple) else 1)
    row, last = " ".join([*leading, *features]), " ".join(features)
    statistic = " ".join([*leading, *("." for _ in features)])
    count = len(call.operator.outputs) - 1
    free: dict[str, Monoid | None] = dict.fromkeys(features)
    return formula(
        call, {0: row, 2: last, 3: last}, [row, *[statistic] * count], work=f"{NORM_WORK} {row}",
        exchange=dict.fromkeys(features, Monoid.SUM), monoids={1 + k: free for k in range(count)},
        extents=[((1, k), name) for k, name in enumerate(features)],
    )  # fmt: skip


def layer_norm_backward(call: Call) -> Pattern | None:
    """(gradient, input, shape, mean, rstd, weight, bias, mask); without mean and bias for RMS norm."""
    given = call.argument(2)
    leading, features = _normalised(call, 1, len(given) if isinstance(given, tuple) else 1)
    row, last = " ".join([*leading, *features]), " ".join(features)
    statistic = " ".join([*leading, *("." for _ in features)])
    rms = call.kind == "aten._fused_rms_norm_backward"
    inputs: Inputs = {0: row, 1: row, 3: statistic, 4: last if rms else statistic}
    inputs |= {} if rms else {5: last, 6: last}
    return formula(
        call, inputs, [row, last, last], work=f"{2 * NORM_WORK} {row}", exchange=dict.fromkeys(features, Monoid.SUM),
        extents=[((2, k), name) for k, name in enumerate(features)],
    )  # fmt: skip


def _space(read: Tensor) -> str:
    """The labels of the dimensions behind samples and channels: '' to 'z y x'."""
    return " ".join(("z", "y", "x")[5 - len(read.shape) :])


def batch_norm(call: Call) -> Pattern | None:
    """(input, weight, bias, running mean, running variance, training).

    Parts of the samples or of an image exchange sums in training (synchronised batch norm); parts that do not are
    each normalised by their own statistics, as DistributedDataParallel's are.
    """
    read = call.tensor(0)
    if read is None:
        return None
    space = _space(read)
    row = f"n c {space}" if space else "n c"
    training = call.argument(5) is True
    summed = ["n", *space.split()]
    inputs: Inputs = {0: row, 1: "c", 2: "c", 3: "c", 4: "c"}
    made = [
        None if t is None else "c" if len(t.shape) == 1 and t.elements() else "." for t in call.operator.outputs[1:]
    ]
    return formula(
        call, inputs, [row, *made], work=f"{NORM_WORK} {row}",
        exchange=dict.fromkeys(summed, Monoid.SUM) if training else {},
        monoids={1 + k: dict.fromkeys((*summed, "c")) for k in range(len(made))},
    )  # fmt: skip


def batch_norm_backward(call: Call) -> Pattern | None:
    """(gradient, input, weight, running mean and variance, saved mean and rstd, training, eps, mask)."""
    read = call.tensor(1)
    if read is None:
        return None
    space = _space(read)
    row = f"n c {space}" if space else "n c"
    inputs: Inputs = {0: row, 1: row, 2: "c", 3: "c", 4: "c", 5: "c", 6: "c"}
    return formula(
        call, inputs, [row, "c", "c"], work=f"{2 * NORM_WORK} {row}",
        exchange=dict.fromkeys(["n", *space.split()], Monoid.SUM) if call.argument(7) is True else {},
    )  # fmt: skip


def group_norm(call: Call) -> Pattern | None:
    """(input, weight, bias, samples, channels, area, groups): whole groups divide freely."""
    read, groups = call.tensor(0), call.integers(6)
    if read is None or not groups:
        return None
    space = _space(read)
    row = f"n (g c) {space}"
    free: dict[str, Monoid | None] = dict.fromkeys(["c", *space.split()])
    return formula(
        call, {0: row, 1: "(g c)", 2: "(g c)"}, [row, "n g", "n g"], work=f"{NORM_WORK} n g c {space}",
        sizes={"g": groups[0]}, exchange=dict.fromkeys(space.split(), Monoid.SUM), monoids={1: free, 2: free},
        extents=[((3,), "n"), ((4,), "g c"), ((5,), space), ((6,), "g")],
    )  # fmt: skip


def group_norm_backward(call: Call) -> Pattern | None:
    """(gradient, input, mean, rstd, weight, samples, channels, area, groups, mask)."""
    read, groups = call.tensor(1), call.integers(8)
    if read is None or not groups:
        return None
    space = _space(read)
    row = f"n (g c) {space}"
    return formula(
        call, {0: row, 1: row, 2: "n g", 3: "n g", 4: "(g c)"}, [row, "(g c)", "(g c)"],
        work=f"{2 * NORM_WORK} n g c {space}", sizes={"g": groups[0]},
        exchange=dict.fromkeys(space.split(), Monoid.SUM),
        extents=[((5,), "n"), ((6,), "g c"), ((7,), space), ((8,), "g")],
    )  # fmt: skip
