"""Spans stored as columns. The times of ranks that are simulated as one are stored once; a Span is made when somebody
reads it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import final, overload

import numpy as np
from numpy.typing import NDArray

from partita.arrays import Reals
from partita.program.program import Role
from partita.program.timeline import Span


@dataclass(frozen=True, eq=False)
class Times:
    """Start and end in seconds of a role's instructions, of shape [rounds, instructions, kinds]. `first` is the number
    of the first round; `kind` maps each of the role's ranks to its kind: ranks of one kind have the same times."""

    role: Role
    first: int
    start: Reals
    end: Reals
    kind: NDArray[np.intp]

    @property
    def length(self) -> int:
        """The number of spans of one rank."""
        return len(self.start) * len(self.role.instructions)

    @cached_property
    def _lanes(self) -> NDArray[np.intp]:
        return np.unique([i.lane for i in self.role.instructions], return_inverse=True)[1]

    def spans(self, rank: int) -> Iterator[Span]:
        """Those of one rank, by lane and start."""
        kind, size, body = self.kind[self.role.place[rank]], self.start.shape[1], self.role.instructions
        start, end = self.start[:, :, kind].ravel(), self.end[:, :, kind].ravel()
        order = np.lexsort((start, np.tile(self._lanes, len(self.start))))
        columns = (order % size, order // size + self.first, start[order], end[order])
        for j, round, begin, stop in zip(*(column.tolist() for column in columns), strict=True):
            yield Span(rank, body[j].lane, body[j].name, type(body[j].act).__name__, round, begin, stop)


@final
class Spans(Sequence[Span]):
    """The spans of all ranks, rank by rank, each rank's by lane and start. Equal to any sequence of the same spans."""

    def __init__(self, times: Sequence[Times]) -> None:
        self._of = {rank: part for part in times for rank in part.role.ranks}
        self._ranks = sorted(self._of)
        self._stops = list(accumulate(self._of[rank].length for rank in self._ranks))

    def of(self, rank: int) -> tuple[Span, ...]:
        """The spans of one rank."""
        return tuple(self._of[rank].spans(rank)) if rank in self._of else ()

    def __len__(self) -> int:
        return self._stops[-1] if self._stops else 0

    def __iter__(self) -> Iterator[Span]:
        for rank in self._ranks:
            yield from self._of[rank].spans(rank)

    @overload
    def __getitem__(self, at: int) -> Span: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Span]: ...
    def __getitem__(self, at: int | slice) -> Span | Sequence[Span]:
        if isinstance(at, slice):
            return tuple(self)[at]
        place = range(len(self))[at]
        k = bisect_right(self._stops, place)
        return self.of(self._ranks[k])[place - self._stops[k]]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} spans of {len(self._ranks)} ranks>"
