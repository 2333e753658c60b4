"""What dividing one dimension of an operator does to its inputs and outputs.

    mm      n i, i o -> n o             split n: shard, replicate -> shard        (sample)
                                        split o: replicate, shard -> shard        (output)
                                        split i: shard, shard     -> partial sum  (reduce)

A pattern names the logical dimensions (labels) of every tensor that an operator reads and makes, as einsum does, with
einops' products: `n s (h d)` has a dimension that holds h blocks of d. Only the outermost label of one splits
into contiguous shards. One Weird Trick (2014), Mesh-TensorFlow (2018), Tofu and Megatron-LM (2019) read off it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import Final, TypeAlias

from partita.errors import PlanError
from partita.graph.tensor import Dim, dim_at


class Role(StrEnum):
    """What a label means to the method that splits it."""

    SAMPLE = "sample"
    OUTPUT = "output"
    REDUCE = "reduce"
    CHANNEL = "channel"
    FEATURE = "feature"
    HEAD = "head"
    GROUP = "group"
    HEIGHT = "height"
    WIDTH = "width"
    DEPTH = "depth"
    SEQUENCE = "sequence"
    CONTEXT = "context"
    VOCABULARY = "vocabulary"
    EXPERT = "expert"
    PLACE = "place"
    FIXED = "fixed"


class Monoid(StrEnum):
    """How partial results join. SOFTMAX averages them by the weight exp(logsumexp) that the same operator returns."""

    SUM = "sum"
    MEAN = "mean"
    MAX = "max"
    MIN = "min"
    PRODUCT = "product"
    LOGSUMEXP = "logsumexp"
    SOFTMAX = "softmax"


@dataclass(frozen=True, slots=True)
class Window:
    """Output place p reads input places `p * stride - padding` to `+ dilation * (kernel - 1)`: shards need halos."""

    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    @property
    def reach(self) -> int:
        """Input places under one output place, holes included."""
        return self.dilation * (self.kernel - 1) + 1

    def reads(self, start: int, stop: int) -> tuple[int, int]:
        """The input places `[first, last)` under output places `[start, stop)`; those outside the input are padding."""
        return start * self.stride - self.padding, (stop - 1) * self.stride - self.padding + self.reach


@dataclass(frozen=True, slots=True)
class Label:
    """A logical dimension; `extent` counts places of the output where a window makes input and output differ.

    `splits` is False where parts would need more than shards, such as the length of a sort. `exchange` says that the
    parts must join a statistic midway (a softmax its log-sum-exp, a norm its sums). `indexed` says that an integer
    input names places of this dimension: a part must subtract its offset and mask what is not its own. No plan
    reads `exchange`, `indexed` or `window` yet: they tell the tests of division which labels shards alone do not do.
    """

    name: str
    extent: Dim
    role: Role = Role.PLACE
    splits: bool = True
    exchange: Monoid | None = None
    indexed: bool = False
    window: Window | None = None


Axes: TypeAlias = tuple[tuple[str, ...], ...]  # a dimension's labels from outer to inner; () has none


@dataclass(frozen=True, slots=True)
class Output:
    """`partial` names the labels, absent from `axes`, over which parts must be joined; of others it is independent."""

    axes: Axes
    partial: tuple[tuple[str, Monoid], ...] = ()


@dataclass(frozen=True, slots=True)
class Work:
    """`factor` FLOPs for every combination of places of `labels`."""

    factor: float
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Extent:
    """The literal at `path` in the operator's arguments is the size of `labels`, so shards must rewrite it."""

    path: tuple[int, ...]
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """`inputs` follow the operator's `reads()`; `added` are inputs that must join a sum once only, such as a bias."""

    labels: tuple[Label, ...]
    inputs: tuple[Axes, ...]
    outputs: tuple[Output | None, ...]
    work: tuple[Work, ...] = ()
    extents: tuple[Extent, ...] = ()
    added: tuple[int, ...] = ()

    def label(self, name: str) -> Label:
        """Raises PlanError for a name that the pattern does not have."""
        for label in self.labels:
            if label.name == name:
                return label
        have = ", ".join(label.name for label in self.labels)
        raise PlanError(f"the operator has no dimension {name!r}; it has {have or 'none'}, so split one of those")

    def size(self, labels: tuple[str, ...], batch: int) -> int:
        """The product of the sizes of these labels for `batch` samples."""
        return prod(dim_at(self.label(name).extent, batch) for name in labels)

    def flops(self, batch: int) -> float:
        """Floating-point operations on `batch` samples, a multiply-add being two."""
        return sum((work.factor * self.size(work.labels, batch) for work in self.work), 0.0)

    def splittable(self) -> tuple[Label, ...]:
        """The labels that `split` accepts."""
        return tuple(label for label in self.labels if label.splits and self._outermost(label.name))

    def _outermost(self, name: str) -> bool:
        made = [output.axes for output in self.outputs if output is not None]
        return all(name not in dim[1:] for axes in (*self.inputs, *made) for dim in axes)


@dataclass(frozen=True, slots=True)
class Shard:
    """Contiguous parts of dimension `dim`."""

    dim: int


@dataclass(frozen=True, slots=True)
class Replicate:
    """Every part has all of it."""


@dataclass(frozen=True, slots=True)
class Partial:
    """Every part has a term; `monoid` joins them into the value; tests of division do it."""

    monoid: Monoid


Placement: TypeAlias = Shard | Replicate | Partial
WHOLE: Final = Replicate()


@dataclass(frozen=True, slots=True)
class Placements:
    """Where each input must be and each output comes out when one label is divided."""

    inputs: tuple[Placement, ...]
    outputs: tuple[Placement | None, ...]


def _place(axes: Axes, name: str) -> Shard | None:
    return next((Shard(dim) for dim, labels in enumerate(axes) if labels[:1] == (name,)), None)


def split(pattern: Pattern, name: str) -> Placements:
    """The placements that dividing label `name` asks for and gives. Raises PlanError where it cannot be divided."""
    label = pattern.label(name)
    if label not in pattern.splittable():
        allowed = ", ".join(each.name for each in pattern.splittable())
        raise PlanError(f"dimension {name!r} does not divide into shards; allowed here are {allowed or 'none'}")
    outputs: list[Placement | None] = []
    for output in pattern.outputs:
        if output is None:
            outputs.append(None)
            continue
        monoid = dict(output.partial).get(name)
        outputs.append(_place(output.axes, name) or (Partial(monoid) if monoid else WHOLE))
    joined = any(placement == Partial(Monoid.SUM) for placement in outputs)
    inputs: list[Placement] = []
    for number, axes in enumerate(pattern.inputs):
        once = Partial(Monoid.SUM) if joined and number in pattern.added else WHOLE
        inputs.append(_place(axes, name) or once)
    return Placements(tuple(inputs), tuple(outputs))
