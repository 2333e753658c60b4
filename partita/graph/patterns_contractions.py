"""Matrix products, convolutions, attention and recurrence: where nearly all FLOPs are."""

from __future__ import annotations

from typing import Final

from partita.graph.formula import Call, Inputs, formula
from partita.graph.pattern import Monoid, Pattern, Role, Window

SPACE: Final = ("z", "y", "x")
BIASED: Final = ("efficient_attention", "dropout_attention")  # that take a mask as an argument behind the values


def product(call: Call) -> Pattern | None:
    """mm and bmm."""
    batch = "b " if call.kind == "aten.bmm" else ""
    return formula(call, {0: f"{batch}n i", 1: f"{batch}i o"}, [f"{batch}n o"], work=f"2 {batch}n i o")


def product_and_sum(call: Call) -> Pattern | None:
    """addmm and baddbmm; the addend may be broadcast."""
    addend, out = call.tensor(0), call.output()
    if addend is None or out is None:
        return None
    batch = "b " if call.kind == "aten.baddbmm" else ""
    names = f"{batch}n o".split()[len(out.shape) - len(addend.shape) :]
    whole = out.shape[len(out.shape) - len(addend.shape) :]
    first = " ".join(name if size == full else "." for name, size, full in zip(names, addend.shape, whole, strict=True))
    return formula(
        call, {0: first, 1: f"{batch}n i", 2: f"{batch}i o"}, [f"{batch}n o"],
        work=f"2 {batch}n i o", added=(0,),
    )  # fmt: skip


def grouped_product(call: Call) -> Pattern | None:
    """Rows sorted by expert, times the expert's own matrix; expert shards mask the rows of others. Of two matrices: for
    each expert the product of its columns and its rows, the gradient of its matrix."""
    other = call.tensor(1)
    if other is not None and len(other.shape) == 2:
        return formula(call, {0: "i n", 1: "n o", 2: "e"}, ["e i o"], work="2 n i o", indexed="e", locked="n")
    return formula(call, {0: "n i", 1: "e i o", 2: "e"}, ["n o"], work="2 n i o", indexed="e", locked="n")


def grouped_product_backward(call: Call) -> Pattern | None:
    """(input, weight, offsets, gradient) -> gradients of input and weight."""
    return formula(
        call, {0: "n i", 1: "e i o", 2: "e", 3: "n o"}, ["n i", "e i o"], work="4 n i o", indexed="e", locked="n",
    )  # fmt: skip


def _windows(call: Call, weight_place: int, first: int) -> tuple[str, str, dict[str, Window]]:
    """Names of the spatial and kernel dimensions, and the windows; `first` is the place of the stride."""
    weight = call.tensor(weight_place)
    kernel = [size for size in weight.shape[2:] if isinstance(size, int)] if weight else []
    names = SPACE[-len(kernel) :]
    rows = [call.integers(first + k) for k in range(3)]
    steps = [row * len(kernel) if len(row) == 1 else row for row in rows]
    windows = {name: Window(k, s, p, d) for name, k, s, p, d in zip(names, kernel, *steps, strict=True)}
    return " ".join(names), " ".join(f"k{name}" for name in names), windows


def _channels(groups: int, transposed: bool) -> tuple[str, str, str, str]:
    """Axes of the input's channels, the output's, and the weight's first two dimensions."""
    if groups == 1:
        return ("i", "o", "i", "o") if transposed else ("i", "o", "o", "i")
    return ("(g i)", "(g o)", "(g i)", "o") if transposed else ("(g i)", "(g o)", "(g o)", "i")


def convolution(call: Call) -> Pattern | None:
    """(input, weight, bias, stride, padding, dilation, transposed, output padding, groups)."""
    if not (many := call.integers(8, 1)):  # as many groups as there are samples
        return None
    groups, transposed = many[0], bool(call.argument(6))
    space, kernel, windows = _windows(call, 1, 3)
    inner, outer, w0, w1 = _channels(groups, transposed)
    made = space.upper() if transposed else space
    return formula(
        call, {0: f"n {inner} {space}", 1: f"{w0} {w1} {kernel}", 2: outer}, [f"n {outer} {made}"],
        work=f"2 n {'g ' if groups > 1 else ''}i o {space} {kernel}",
        sizes={"g": groups} if groups > 1 else {},
        locked=f"{kernel} {space} {made}" if transposed else kernel,
        windows={} if transposed else windows,
        extents=[((8,), "g")] if groups > 1 else [], added=(2,),
    )  # fmt: skip


def convolution_backward(call: Call) -> Pattern | None:
    """(gradient, input, weight, bias sizes, stride, padding, dilation, transposed, output padding, groups, mask)."""
    if not (many := call.integers(9, 1)):
        return None
    groups, transposed, mask = many[0], bool(call.argument(7)), call.argument(10)
    space, kernel, windows = _windows(call, 2, 4)
    inner, outer, w0, w1 = _channels(groups, transposed)
    made = space.upper() if transposed else space
    terms = sum(bool(each) for each in mask[:2]) if isinstance(mask, tuple) else 2
    narrow = call.tensor(1 if transposed else 0)
    places = dict(zip(space.split(), narrow.shape[2:], strict=True)) if narrow else {}
    group = "g " if groups > 1 else ""
    return formula(
        call,
        {0: f"n {outer} {made}", 1: f"n {inner} {space}", 2: f"{w0} {w1} {kernel}"},
        [f"n {inner} {space}", f"{w0} {w1} {kernel}", outer.strip()],
        work=f"{2 * terms} n {group}i o {space} {kernel}", sizes=places | ({"g": groups} if groups > 1 else {}),
        locked=f"{kernel} {space} {made}" if transposed else kernel,
        windows={} if transposed else windows,
        monoids={2: {"i": None}},
        extents=[((9,), "g"), ((3, 0), "g o")] if groups > 1 else [((3, 0), "o")] if call.argument(3) else [],
    )  # fmt: skip


def _scores(call: Call, query: int, key: int, causal: bool) -> tuple[str, str, dict[str, int]]:
    """Axes of heads in queries and keys (grouped heads share keys), and what is locked besides."""
    q, k = call.tensor(query), call.tensor(key)
    heads = [t.shape[1] for t in (q, k) if t is not None and isinstance(t.shape[1], int)]
    if len(heads) == 2 and heads[0] != heads[1]:
        return "(h r)", "s t" if causal else "", {"r": heads[0] // heads[1]}
    return "h", "s t" if causal else "", {}


def _masks(call: Call, heads: str, place: int | None) -> Inputs:
    """Axes of an additive mask [n, h, s, t] any of whose dimensions may be 1: a keyword, or the argument at `place`."""
    found: Inputs = {}
    for path, ref in call.reads():
        if path[-1] in ("attn_mask", "attn_bias") or path == (place,):
            shape = call.graph.tensor(ref).shape
            names = ["n", heads, "s", "t"][-len(shape) :]
            found[path] = " ".join("." if size == 1 else name for name, size in zip(names, shape, strict=True))
    return found


def attention(call: Call) -> Pattern | None:
    """Scaled dot-product attention; parts over keys join by log-sum-exp (FlashAttention-2, Ring Attention, 2023)."""
    causal = any(argument is True for argument in call.operator.arguments[3:6])
    heads, locked, sizes = _scores(call, 0, 1, causal)
    inputs: Inputs = {0: f"n {heads} s d", 1: "n h t d", 2: "n h t v"}
    inputs |= _masks(call, heads, 3 if call.kind.endswith(BIASED) else None)
    group = "r " if sizes else ""
    others: list[str | None] = [
        None if t is None else " ".join("." for _ in t.shape) for t in call.operator.outputs[2:]
    ]
    return formula(
        call, inputs, [f"n {heads} s v", f"n {heads} s", *others],
        work=f"2 n h {group}s t d + 2 n h {group}s t v", sizes=sizes, locked=f"d v {locked}",
        roles={"d": Role.FEATURE, "v": Role.FEATURE},
        monoids={0: {"t": Monoid.SOFTMAX}, 1: {"t": Monoid.LOGSUMEXP}}
        | {2 + number: dict.fromkeys("nhst") for number in range(len(others))},
    )  # fmt: skip


def attention_backward(call: Call) -> Pattern | None:
    """(gradient, query, key, value, [bias,] out, logsumexp, ...); the scores are computed anew."""
    bias = 4 if call.kind.removesuffix("_backward").endswith(BIASED) else None
    after = 5 if bias else 4
    causal = any(argument is True for argument in call.operator.arguments[after + 2 :])
    heads, locked, sizes = _scores(call, 1, 2, causal)
    inputs: Inputs = {0: f"n {heads} s v", 1: f"n {heads} s d", 2: "n h t d", 3: "n h t v"}
    inputs |= _masks(call, heads, bias)
    inputs |= {after: f"n {heads} s v", after + 1: f"n {heads} s"}
    group = "r " if sizes else ""
    outputs = [f"n {heads} s d", "n h t d", "n h t v"]
    return formula(
        call, inputs, outputs, work=f"6 n h {group}s t d + 4 n h {group}s t v", sizes=sizes, locked=f"d v {locked}",
        roles={"d": Role.FEATURE, "v": Role.FEATURE},
    )  # fmt: skip


def recurrence(call: Call) -> Pattern | None:
    """One LSTM or GRU layer over t steps; the gates couple all features, so samples alone divide.

    The last output is a workspace that only the part which made it reads.
    """
    states = ["n f"] * (2 if "lstm" in call.kind else 1)
    leaves, ends = ["t n i", "q i", "q f", "q", "q", *states], ["t n f", *states]
    backward = call.kind.endswith("backward")
    read, outputs = ([*leaves, *ends, "n", *ends], leaves) if backward else (leaves, [*ends, "n"])
    inputs: Inputs = dict(enumerate(read))
    factor = 4 if backward else 2
    return formula(call, inputs, outputs, work=f"{factor} t n i q + {factor} t n f q", locked="t i q f")
