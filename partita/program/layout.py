"""The layouts that instructions name: buckets of parameters, codings of buckets, parcels of values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from math import prod

from partita.graph.tensor import ITEMSIZE, Tensor
from partita.plan.wire import Codec
from partita.program.space import Space
from partita.units import Bytes

WEIGHT, MASS, NORM, WORD = "weight", "mass", "norm", "word"


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows `start` to `stop` (dimension 0) of a parameter; (0, -1) is all of it. `last`: the piece that holds its last
    row."""

    parameter: str
    start: int = 0
    stop: int = -1
    last: bool = True


@dataclass(frozen=True, slots=True)
class Shares:
    """Who owns which elements of a bucket (ZeRO): the k-th rank of each group owns elements edges[k] to edges[k + 1].

    A rank updates what it owns. In the spaces in `whole` it also keeps the rest; in others it has the rest only from a
    gather, or a Pack, to the next Free.
    """

    groups: tuple[tuple[int, ...], ...]
    edges: tuple[int, ...]
    whole: tuple[Space, ...] = (Space.PARAMETER, Space.GRADIENT)

    def group_of(self, rank: int) -> tuple[int, ...]:
        """The ranks among which a rank's elements are divided; () if it owns none."""
        return next((group for group in self.groups if rank in group), ())

    def of(self, rank: int) -> tuple[int, int]:
        """The elements that a rank owns, as (start, stop)."""
        place = self.group_of(rank).index(rank)
        return self.edges[place], self.edges[place + 1]


@lru_cache(maxsize=1024)
def widest(edges: tuple[int, ...]) -> int:
    """The number of elements of the largest part between `edges`."""
    return max(b - a for a, b in pairwise(edges))


@dataclass(frozen=True, slots=True)
class Bucket:
    """Pieces of parameters that are sent and updated together, as one dense vector of `elements`. All ranks that have
    the bucket update it, or with `shares` each its own part.

    Dtypes: weights in `dtype`; `master` is that of the fp32 copy which the optimizer steps in half precision, `sums`
    that of gradients, `shared` that of the tensor which the ranks of a machine share ("": as the weights).

    WEIGHT, MASS, NORM and WORD are buckets of one number and no pieces: the total weight of the samples of a weighted
    loss; the weight of a rank's sum in push-sum gossip; the squared norm of gradients on several ranks; and a number
    without meaning, whose sum tells that all have met.
    """

    name: str
    dtype: str
    elements: int
    pieces: tuple[Piece, ...]
    shares: Shares | None = None
    master: str = ""
    sums: str = ""
    shared: str = ""

    def keeps(self, space: Space) -> bool:
        """Whether a rank keeps all elements of the bucket in a space."""
        return self.shares is None or space in self.shares.whole

    @property
    def owned(self) -> int:
        """How many elements a rank updates; where ranks differ, the most."""
        return widest(self.shares.edges) if self.shares else self.elements

    @property
    def size(self) -> Bytes:
        """Bytes of its weights."""
        return self.elements * ITEMSIZE[self.dtype]

    def item(self, space: Space) -> Bytes:
        """Bytes of an element in a space."""
        return ITEMSIZE[self.sums or self.dtype] if space is Space.GRADIENT else ITEMSIZE[self.dtype]


@dataclass(frozen=True, slots=True)
class Coding:
    """What `codec` makes of a bucket's gradient: `elements` numbers of `dtype` that can be summed on the way, or bytes.

    Where the length of messages varies, `elements` is the expected length and `most` the room for them. A codec may
    make several codings of a bucket, each from the sums of those in `before`; these keep a Space.BASIS. Where ranks own
    parts of the bucket, each part between its `edges` is a message of its own, of `parts` numbers. It looks at so many
    `tensors` of the bucket one by one. The codings of `slots` rounds are kept apart.
    """

    name: str
    bucket: str
    codec: Codec
    dtype: str
    elements: int
    most: int = 0
    before: tuple[str, ...] = ()
    edges: tuple[int, ...] = ()
    parts: tuple[int, ...] = ()
    tensors: int = 1
    slots: int = 1

    @property
    def size(self) -> Bytes:
        """Bytes of a message."""
        return self.elements * ITEMSIZE[self.dtype]


@dataclass(frozen=True)
class Parcel:
    """Values of `batch` samples that cross between stages in one message, under the names that the receiver uses."""

    name: str
    values: tuple[tuple[str, Tensor], ...]
    batch: int

    @cached_property
    def size(self) -> Bytes:
        """Bytes of a message."""
        return sum(dense_elements(tensor, self.batch) * ITEMSIZE[tensor.dtype] for _, tensor in self.values)


def of_one_number(name: str) -> Bucket:
    """The bucket WEIGHT, MASS, NORM or WORD."""
    return Bucket(name, "float64", 1, ())


def dense_elements(tensor: Tensor, batch: int) -> int:
    """Elements in a message of the tensor: a dimension of stride 0 (an expanded one) is sent once."""
    strides = tensor.strides or (1,) * len(tensor.shape)
    return prod(d for d, stride in zip(tensor.shape_at(batch), strides, strict=True) if stride != 0)


def even(count: int, parts: int) -> tuple[int, ...]:
    """The edges, from 0 to `count`, of parts that differ by one at most; longer ones lie anywhere, and those of
    `wire.schedule.even_edges` first, as backends have them."""
    return tuple(count * k // parts for k in range(parts + 1))
