"""What instructions speak of: buckets of parameters, codings of them, parcels of values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import prod

from partita.graph.tensor import ITEMSIZE, Tensor, dim_at
from partita.plan.wire import Codec
from partita.program.space import Space
from partita.units import Bytes

WEIGHT, MASS, NORM, WORD = "weight", "mass", "norm", "word"


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows `start` to `stop` (dimension 0) of a parameter; (0, -1) is all of it, `last` the piece with its end."""

    parameter: str
    start: int = 0
    stop: int = -1
    last: bool = True


@dataclass(frozen=True, slots=True)
class Shares:
    """Who owns which elements of a bucket (ZeRO): the k-th rank of each group those from edges[k] to edges[k + 1].

    A rank updates what it owns. `whole` names the spaces of which it keeps the rest as well; of others it has the rest
    from a gather, or a Pack, to a Free.
    """

    groups: tuple[tuple[int, ...], ...]
    edges: tuple[int, ...]
    whole: tuple[Space, ...] = (Space.PARAMETER, Space.GRADIENT)

    def of(self, rank: int) -> tuple[int, int]:
        """The elements that a rank owns, as (start, stop)."""
        place = next(group.index(rank) for group in self.groups if rank in group)
        return self.edges[place], self.edges[place + 1]


@lru_cache(maxsize=1024)
def widest(edges: tuple[int, ...]) -> int:
    """The elements of the largest of the parts between edges."""
    return max(b - a for a, b in pairwise(edges))


@dataclass(frozen=True, slots=True)
class Bucket:
    """Pieces of parameters that travel and are updated together, dense and in this order; by all ranks that have them,
    or where there are `shares` by its owners. Where weights are short, their owner has them in `master` too, and steps
    there; gradients are kept and summed in `sums`, and what a machine's ranks have in common in `shared` ("": as the
    weights are).

    WEIGHT, MASS, NORM and WORD name buckets without pieces, of one number each: what the samples of a weighted loss
    weigh together, what a rank's sum of pushed weights weighs, the square of the norm of gradients that lie on several
    ranks, and nothing: who sums it up has met.
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
        """Whether a rank keeps all elements in a space."""
        return self.shares is None or space in self.shares.whole

    @property
    def owned(self) -> int:
        """The elements that a rank updates, of the ranks' parts the largest."""
        return widest(self.shares.edges) if self.shares else self.elements

    @property
    def size(self) -> Bytes:
        return self.elements * ITEMSIZE[self.dtype]

    def item(self, space: Space) -> Bytes:
        """Bytes of an element in a space."""
        return ITEMSIZE[self.sums or self.dtype] if space is Space.GRADIENT else ITEMSIZE[self.dtype]


@dataclass(frozen=True, slots=True)
class Coding:
    """What `codec` makes of a bucket's gradient: `elements` numbers of `dtype` that may be summed on the way, or bytes.

    Where the codec's messages vary in length, `elements` is the expected number and `most` what there is room for. A
    codec may make several of a bucket, each from the sums of those `before`; of these it keeps a Space.BASIS. Where
    owners have parts of the bucket each part between its `edges` is a message of its own, of `parts` numbers.
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

    @property
    def size(self) -> Bytes:
        return self.elements * ITEMSIZE[self.dtype]


@dataclass(frozen=True, slots=True)
class Parcel:
    """Values that cross between stages together, for `batch` samples, under the names that their taker knows."""

    name: str
    values: tuple[tuple[str, Tensor], ...]
    batch: int

    @property
    def size(self) -> Bytes:
        return sum(dense_elements(tensor, self.batch) * ITEMSIZE[tensor.dtype] for _, tensor in self.values)


def of_one_number(name: str) -> Bucket:
    """The bucket WEIGHT, MASS, NORM or WORD."""
    return Bucket(name, "float64", 1, ())


def dense_elements(tensor: Tensor, batch: int) -> int:
    """Elements that a message holds: a dimension of stride 0 (an expanded one) is sent once."""
    strides = tensor.strides or (1,) * len(tensor.shape)
    return prod(dim_at(d, batch) for d, stride in zip(tensor.shape, strides, strict=True) if stride != 0)
