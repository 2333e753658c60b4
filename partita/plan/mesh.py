"""Where a plan runs: a mesh of ranks, the stages that operators are cut into, the dimensions divided over mesh axes."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class Mesh:
    """Named axes over the ranks, slowest first: `(("pipe", 2), ("data", 4))` puts ranks 0-3 in pipe 0.

    Meshes have axes, tensors have dims. No axes: one rank.
    """

    axes: tuple[tuple[str, int], ...] = ()

    @property
    def size(self) -> int:
        """The number of ranks."""
        return prod(length for _, length in self.axes)

    def length(self, axis: str) -> int:
        """Ranks along `axis`; 1 if the mesh does not have it."""
        return dict(self.axes).get(axis, 1)

    def coordinate(self, rank: int, axis: str) -> int:
        """Place of `rank` along `axis`; 0 if the mesh does not have it."""
        below = 1
        for name, length in reversed(self.axes):
            if name == axis:
                return rank // below % length
            below *= length
        return 0


@dataclass(frozen=True, slots=True)
class Stage:
    """Forward operators from `first` (an operator's name or a module path; "" is the beginning) to the next stage.

    `ranks` are its replicas, to which microbatches are dealt out in turn; empty: the ranks at the stage's coordinate of
    the mesh's pipe axis.
    """

    first: str = ""
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Split:
    """Divide dimension `dim` of the operators that match `operators` over the mesh axis `axis`.

    `operators` is a glob over module paths and targets; `dim` is the name that the operator's pattern gives the
    dimension (sample, output, reduce, head, height, width, sequence, expert). `ranks` restricts the split to some
    ranks. `scheme` names how the parts cross into the next layout where there is a choice (One Weird Trick's a, b, c).
    """

    operators: str = "*"
    dim: str = "sample"
    axis: str = "data"
    ranks: tuple[int, ...] = ()
    scheme: str = ""
