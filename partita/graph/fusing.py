"""What stays on the chip of a step that goes through a compiler: pointwise operators, views, norms and reductions that
follow each other are one kernel (torch.compile's loops; Ansel et al., ASPLOS 2024).

    mm --> [ x, pow, mean, rsqrt, mul ] --> mm         the kernel reads x once and writes what mm reads

An operator's turn is the number of operators that stay kernels of their own (products, attention, draws, scatters) on
the longest way to it. Only operators of one turn join, so that no kernel waits for what waits for it; turns are as late
as readers allow. A sum over all but the last dimension, such as a bias's gradient, is a kernel of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from partita.graph.formula import Call, kind_of
from partita.graph.graph import Graph
from partita.graph.operator import Operator, Ref
from partita.graph.patterns import LOOKUPS, NORMS, POINTS, VIEWS, shares_memory
from partita.graph.repeats import DRAW

APART: Final = frozenset(
    f"aten.{name}"
    for name in (
        "embedding_dense_backward", "index_put", "scatter_add", "scatter", "topk", "sort", "median", "cumsum",
        "cumprod", "max_pool2d_with_indices_backward", "avg_pool2d_backward",
    )
)  # fmt: skip
LOOPS: Final = frozenset({*POINTS, *VIEWS, *NORMS, *LOOKUPS}) - APART


@dataclass(frozen=True, slots=True)
class Part:
    """An operator's part of a kernel: which of its reads, in order, come from memory, which outputs go there, and
    whether it begins the kernel."""

    read: tuple[bool, ...]
    written: tuple[bool, ...]
    begins: bool = True

    @property
    def mark(self) -> str:
        """`|10>1*`: reads the first of two values, writes one, begins."""
        bits = ["".join("01"[bit] for bit in side) for side in (self.read, self.written)]
        return f"|{bits[0]}>{bits[1]}{'*' if self.begins else ''}"


def parts_of(graph: Graph) -> tuple[Part | None, ...]:
    """The part of each operator; None of those that are kernels of their own, or none. Worked out once."""
    return graph.once("parts", lambda: _Fuser(graph).parts())


def joins(operator: Operator) -> bool:
    """Whether an operator is a loop that a compiler writes itself."""
    return kind_of(operator.target) in LOOPS and operator.target not in DRAW


class _Fuser:
    """Lives for one call of `parts_of`; values that share memory go by their root."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.operators = graph, graph.operators
        self.views = [shares_memory(o, graph) for o in self.operators]
        self.roots: dict[Ref, Ref] = {}
        self.readers: dict[Ref, list[int]] = {}
        self.reads: list[list[Ref]] = []
        for i, operator in enumerate(self.operators):
            self.reads.append([self.roots.get(ref, ref) for ref in operator.reads()])
            for ref in operator.results():
                self.roots[ref] = self.reads[i][0] if self.views[i] and self.reads[i] else ref
            for ref in dict.fromkeys(self.reads[i]) if not self.views[i] else ():
                self.readers.setdefault(ref, []).append(i)
        self.loops = [joins(o) and not view for o, view in zip(self.operators, self.views, strict=True)]
        self.apart = [self.loops[i] and _across(o, graph) for i, o in enumerate(self.operators)]
        self.results = {self.roots.get(ref, ref) for ref in graph.results()}
        self.results |= {self.roots.get(ref, ref) for _, ref in graph.sends}
        self.turn = self._turns()

    def maker(self, ref: Ref, reader: int) -> int:
        """The operator of the reader's pass that makes a value; -1 where it lies in memory already."""
        place = self.graph.index.get(ref.name, -1)
        return place if place >= 0 and self.operators[place].phase is self.operators[reader].phase else -1

    def _turns(self) -> list[int]:
        turn = [0] * len(self.operators)
        for i in range(len(turn)):
            if not self.views[i]:
                makers = [place for ref in self.reads[i] if (place := self.maker(ref, i)) >= 0]
                turn[i] = max((turn[place] + (not self.loops[place]) for place in makers), default=0)
        for i in reversed(range(len(turn))):
            if self.loops[i]:
                later = [turn[j] for ref in self.operators[i].results() for j in self.readers.get(ref, ())
                         if self.maker(ref, j) == i]  # fmt: skip
                turn[i] = max(turn[i], min(later, default=turn[i]))
        return turn

    def joined(self, ref: Ref, reader: int) -> bool:
        """Whether a value never leaves the chip on its way to a reader."""
        place = self.maker(ref, reader)
        if place < 0 or not self.loops[place] or not self.loops[reader] or self.turn[place] != self.turn[reader]:
            return False
        alone = len(self.readers[ref]) == 1 and ref not in self.results
        return not self.apart[place] and (alone or not self.apart[reader])

    def parts(self) -> tuple[Part | None, ...]:
        kernel = list(range(len(self.operators)))
        of = partial(_root, kernel)
        for i in range(len(kernel)):
            for ref in self.reads[i] if self.loops[i] else ():
                if self.joined(ref, i):
                    one, other = sorted((of(i), of(self.maker(ref, i))))
                    kernel[other] = one
        seen: set[tuple[int, Ref]] = set()
        found: list[Part | None] = []
        for i, operator in enumerate(self.operators):
            if not self.loops[i]:
                found.append(None)
                continue
            read = []
            for ref in self.reads[i]:
                read.append(not self.joined(ref, i) and (of(i), ref) not in seen)
                seen.add((of(i), ref))
            written = tuple(self._leaves(ref) for ref in operator.results())
            found.append(Part(tuple(read), written, of(i) == i))
        return tuple(found)

    def _leaves(self, ref: Ref) -> bool:
        """Whether a value is written to memory: somebody reads it there."""
        return ref in self.results or any(not self.joined(ref, j) for j in self.readers.get(ref, ()))


def _root(kernel: list[int], i: int) -> int:
    """The first operator of the kernel that operator `i` was joined to."""
    while kernel[i] != i:
        i = kernel[i]
    return i


def _across(operator: Operator, graph: Graph) -> bool:
    """Whether it sums over other dimensions than the last one only."""
    kind, call = kind_of(operator.target), Call(operator, graph)
    read = call.tensor(0)
    if kind not in ("aten.sum", "aten.mean", "aten.amax", "aten.amin") or read is None:
        return False
    dims = {dim % max(len(read.shape), 1) for dim in call.integers(1)} or set(range(len(read.shape)))
    return dims != {len(read.shape) - 1}
