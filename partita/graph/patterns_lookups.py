"""Operators that integers steer: embedding, index, gather, the likelihood of a class; pooling and resizing besides."""

from __future__ import annotations

from partita.graph.formula import Call, Inputs, formula
from partita.graph.operator import Ref
from partita.graph.pattern import Axes, Monoid, Pattern, Role, Window
from partita.graph.patterns_pointwise import broadcast, dims
from partita.graph.tensor import Tensor


def embedding(call: Call) -> Pattern | None:
    """(table [v, f], places): a part of the vocabulary gives zero for places outside it, the parts sum."""
    names = " ".join(dims(call.tensor(1)))
    return formula(call, {0: "v f", 1: names}, [f"{names} f"], indexed="v")


def embedding_backward(call: Call) -> Pattern | None:
    """(gradient, places, vocabulary, padding, scale): every part of the vocabulary takes its own rows."""
    names = " ".join(dims(call.tensor(1)))
    out = call.output()
    if out is None:
        return None
    return formula(
        call, {0: f"{names} f", 1: names}, ["v f"], work=f"1 {names} f", indexed="v", extents=[((2,), "v")],
    )  # fmt: skip


def _spread(tensors: list[Tensor]) -> tuple[str, dict[int, Axes]]:
    """Names of the shape that index tensors broadcast to, and the axes of each."""
    widest = max(tensors, key=lambda tensor: len(tensor.shape))
    shape = list(widest.shape)
    for tensor in tensors:
        for place, size in enumerate(reversed(tensor.shape)):
            shape[-1 - place] = size if shape[-1 - place] == 1 else shape[-1 - place]
    whole = Tensor(tuple(shape), "int64")
    names = [f"k{place}" for place in range(len(shape))]
    return " ".join(names), {number: broadcast(names, whole, tensor) or () for number, tensor in enumerate(tensors)}


def _indices(call: Call) -> tuple[list[str], str, Inputs, list[int]] | None:
    """Axes of the indexed tensor, names of the index shape, axes of each index, and the dimensions they take."""
    given, read = call.argument(1), call.tensor(0)
    if read is None or not isinstance(given, tuple):
        return None
    taken = [place for place, index in enumerate(given) if isinstance(index, Ref)]
    tensors = [call.graph.tensor(index) for index in given if isinstance(index, Ref)]
    if not taken or any(tensor.dtype == "bool" for tensor in tensors):
        return None
    spread, each = _spread(tensors)
    return dims(read), spread, {(1, place): each[number] for number, place in enumerate(taken)}, taken


def _indexed_axes(names: list[str], spread: str, taken: list[int]) -> str:
    """The index shape stands where the indices are side by side, else in front."""
    together = taken == list(range(taken[0], taken[-1] + 1))
    first = taken[0] if together else 0
    before = [name for place, name in enumerate(names) if place not in taken and (together and place < first)]
    after = [name for place, name in enumerate(names) if place not in taken and name not in before]
    return " ".join([*before, spread, *after])


def index(call: Call) -> Pattern | None:
    """x[i, j, ...]: what the indices do not take divides, and so do the places they ask for."""
    found = _indices(call)
    if found is None:
        return None
    names, spread, axes, taken = found
    one = len(taken) == 1
    steered = " ".join(names[place] for place in taken)
    return formula(
        call, axes | {0: " ".join(names)}, [_indexed_axes(names, spread, taken)],
        locked="" if one else steered, indexed=steered if one else "",
    )  # fmt: skip


def index_put(call: Call) -> Pattern | None:
    """(x, indices, values, accumulate): places written divide only where values add up."""
    found = _indices(call)
    values = call.tensor(2)
    if found is None or values is None:
        return None
    names, spread, axes, taken = found
    steered = " ".join(names[place] for place in taken)
    adds = call.argument(3) is True
    written = _indexed_axes(names, spread, taken).split()[-len(values.shape) :] if values.shape else []
    return formula(
        call, axes | {0: " ".join(names), 2: " ".join(written)}, [" ".join(names)],
        locked=steered if adds else f"{steered} {spread}", added=(0,),
    )  # fmt: skip


def gather(call: Call) -> Pattern | None:
    """gather, scatter and scatter_add along one dimension; the others divide where the sizes agree."""
    read, places = call.tensor(0), call.tensor(2)
    if read is None or places is None or len(read.shape) != len(places.shape):
        return None
    names = dims(read)
    dim = (call.integers(1) or (0,))[0] % max(len(names), 1)
    pairs = zip(names, read.shape, places.shape, strict=True)
    along = [name if a == b and k != dim else "." for k, (name, a, b) in enumerate(pairs)]
    kept = [name if along[k] != "." or k == dim else "." for k, name in enumerate(names)]
    gathers = call.kind == "aten.gather"
    steered = " ".join([*along[:dim], "k", *along[dim + 1 :]])
    inputs: Inputs = {0: " ".join(kept), 2: steered}
    inputs |= {} if gathers else {3: steered}
    return formula(call, inputs, [steered if gathers else " ".join(kept)], locked=f"k {names[dim]}")


def likelihood(call: Call) -> Pattern | None:
    """nll_loss (log-probabilities, target, weight, reduction): 0 each, 1 mean, 2 sum.

    A part of the vocabulary masks the targets of others; for a mean it needs the number of all targets.
    """
    rest = " ".join(dims(call.tensor(1), "s")[1:])
    place = f"n {rest}".strip() if call.tensor(1) and call.tensor(1) != Tensor((), "int64") else ""
    kind = (call.integers(3, 1) or (1,))[0]
    join = Monoid.MEAN if kind == 1 else Monoid.SUM
    over = place.split()
    return formula(
        call, {0: f"n v {rest}", 1: place, 2: "v"}, [place if kind == 0 else "", ""], work=f"1 {place}",
        indexed="v", exchange={"v": Monoid.SUM},
        monoids={0: dict.fromkeys(over, join), 1: {"v": None}},
    )  # fmt: skip


def likelihood_backward(call: Call) -> Pattern | None:
    """(gradient, log-probabilities, target, weight, reduction, ignored, total weight)."""
    rest = " ".join(dims(call.tensor(2), "s")[1:])
    place = f"n {rest}".strip()
    reduced = (call.integers(4, 1) or (1,))[0] != 0
    return formula(
        call, {0: "" if reduced else place, 1: f"n v {rest}", 2: place, 3: "v", 6: ""}, [f"n v {rest}"],
        work=f"1 {place}", indexed="v",
    )  # fmt: skip


def difference(call: Call) -> Pattern | None:
    """mse, huber, smooth-l1, binary cross-entropy (input, target, reduction); backward takes the gradient first."""
    backward = call.kind.endswith("backward")
    read = call.tensor(1 if backward else 0)
    out = call.output()
    if read is None or out is None:
        return None
    names = " ".join(dims(read))
    gradient = call.tensor(0)
    inputs: Inputs = {0: names, 1: names}
    if backward:
        inputs = {0: names if gradient and gradient.shape else "", 1: names, 2: names}
    reduced = not out.shape
    join = Monoid.SUM if 2 in call.integers(2) else Monoid.MEAN
    return formula(
        call, inputs, [names if not reduced else ""], work=f"3 {names}",
        monoids={0: dict.fromkeys(names.split(), join)} if reduced else {},
    )  # fmt: skip


def pooling(call: Call) -> Pattern | None:
    """max_pool2d and avg_pool2d, forward and (gradient first) backward: windows over height and width."""
    backward = call.kind.endswith("backward")
    first = 1 if backward else 0
    kernel = call.integers(first + 1)
    if len(kernel) not in (1, 2):
        return None
    rows = [kernel, call.integers(first + 2) or kernel, call.integers(first + 3, 0) or (0,)]
    (ky, kx), (sy, sx), (py, px) = ((row * 2)[:2] for row in rows)
    windows = {"y": Window(ky, sy, py), "x": Window(kx, sx, px)}
    read = call.tensor(first)
    row = "n c y x" if read is not None and len(read.shape) == 4 else "c y x"
    made = call.tensor(0) if backward else call.output()
    sizes = dict(zip("yx", made.shape[-2:], strict=True)) if made else {}
    inputs: Inputs = dict.fromkeys((0, 1, 7) if backward else (0,), row)
    indices = call.kind.startswith("aten.max_pool2d_with_indices")  # they count places of the whole image
    return formula(
        call, inputs, [row] * len(call.operator.outputs), work=f"{ky * kx} {row}", windows=windows, sizes=sizes,
        locked="y x" if indices else "",
    )  # fmt: skip


def resized(call: Call) -> Pattern | None:
    """Adaptive pooling and upsampling: samples and channels divide, the image stays whole."""
    read, out = call.tensor(0), call.output()
    if read is None or out is None or len(read.shape) < 3:
        return None
    count = len(read.shape) - 2
    before, after = (" ".join(f"{letter}{k}" for k in range(count)) for letter in ("p", "q"))
    places = [place for place in (0, 1) if isinstance(call.argument(place), Ref)]
    inputs: Inputs = dict.fromkeys(places, f"n c {before}")
    if len(places) == 2:  # a backward: gradient, then the input, whose size the output has
        inputs = {0: f"n c {before}", 1: f"n c {after}"}
    return formula(
        call, inputs, [f"n c {after}"], work=f"1 n c {before}", locked=f"{before} {after}",
        roles=dict.fromkeys(f"{before} {after}".split(), Role.FIXED),
    )  # fmt: skip
