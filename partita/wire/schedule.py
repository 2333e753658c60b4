"""A collective as data: who sends which part of a vector to whom, step by step.

    parts     the vector in `parts` pieces of about equal length, the first ones longer by one
    hop       0 --[1:2]--> 3 +     rank 0 sends part 1 to rank 3, which adds it to its own
              0 --[1:2]--> 3       ... which puts it in the place of its own
    step      hops that may go on at the same time: each sends what its sender held when the step began
    sparse    parts travel as streams of the numbers that are not 0 (see `streams`), as long as these turn out to be

A rank goes through its own hops step by step and waits for nobody else. The simulator takes times and bytes from a
schedule, the worker its sends and receives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate

from partita.errors import ProgramError
from partita.units import Bytes


@dataclass(frozen=True, slots=True)
class Hop:
    """Parts `start` to `stop` from `source` to `target`, where they are added (`add`) or take the place of others.

    Ranks are places in the group that agrees, from 0.
    """

    source: int
    target: int
    start: int
    stop: int
    add: bool

    def __str__(self) -> str:
        return f"{self.source} --[{self.start}:{self.stop}]--> {self.target}{' +' * self.add}"


Step = tuple[Hop, ...]


@dataclass(frozen=True, slots=True)
class Sparse:
    """How parts travel as streams: sums alone, results `whole`, as in any other schedule (SparCML's DSAR), or both
    (SSAR); with `maps` both ends of a hop keep the places of the entries, which travel again only once they are others
    (Kylix)."""

    whole: bool = False
    maps: bool = False


@dataclass(frozen=True, eq=False)
class Schedule:
    """The steps of a collective among `ranks` ranks on a vector in `parts` pieces. Two are equal if they are one."""

    name: str
    ranks: int
    parts: int
    steps: tuple[Step, ...]
    sparse: Sparse | None = None

    def __str__(self) -> str:
        lines = [f"{i:4}  " + "   ".join(map(str, step)) for i, step in enumerate(self.steps)]
        return "\n".join([f"{self.name}, {self.ranks} ranks, {self.parts} parts", *lines])

    @cached_property
    def hops(self) -> tuple[Hop, ...]:
        """All hops, in the order of their steps."""
        return tuple(hop for step in self.steps for hop in step)

    def elements(self, hop: Hop, elements: int) -> int:
        """How many of a vector's `elements` a hop moves."""
        edges = edges_of(elements, self.parts)
        return edges[hop.stop] - edges[hop.start]

    def sent(self, elements: int, item: int) -> list[Bytes]:
        """Bytes that each rank sends, of a vector of `elements` of `item` bytes."""
        edges, found = edges_of(elements, self.parts), [0] * self.ranks
        for hop in self.hops:
            found[hop.source] += (edges[hop.stop] - edges[hop.start]) * item
        return found


def edges_of(elements: int, parts: int) -> tuple[int, ...]:
    """Where the parts of a vector begin, and its end: as equal as it goes, the first ones longer by one."""
    share, rest = divmod(elements, parts)
    return tuple(accumulate((share + (i < rest) for i in range(parts)), initial=0))


def schedule(name: str, ranks: int, parts: int, steps: list[list[Hop]]) -> Schedule:
    """A Schedule of the steps in which anything is sent. Raises ProgramError for a hop that no rank or part is for."""
    for hop in (hop for step in steps for hop in step):
        if hop.source == hop.target or not 0 <= min(hop.source, hop.target) <= max(hop.source, hop.target) < ranks:
            raise ProgramError(f"{name}: the hop {hop} is not between two of {ranks} ranks")
        if not 0 <= hop.start < hop.stop <= parts:
            raise ProgramError(f"{name}: the hop {hop} moves parts that a vector of {parts} does not have")
    return Schedule(name, ranks, parts, tuple(tuple(step) for step in steps if step))


@lru_cache(256)
def own_steps(schedule: Schedule, rank: int) -> tuple[tuple[int, tuple[Hop, ...], tuple[Hop, ...]], ...]:
    """(number, hops to a rank, hops from it) of the steps in which it takes part."""
    found = (
        (number, tuple(hop for hop in step if hop.target == rank), tuple(hop for hop in step if hop.source == rank))
        for number, step in enumerate(schedule.steps)
    )
    return tuple((number, coming, going) for number, coming, going in found if coming or going)


@lru_cache(256)
def strand(whole: Schedule, number: int, of: int) -> Schedule:
    """A schedule for every `of`-th part of a vector whose parts are each cut into `of`: those with this `number`."""
    steps = (
        tuple(
            Hop(hop.source, hop.target, part * of + number, part * of + number + 1, hop.add)
            for hop in step
            for part in range(hop.start, hop.stop)
        )
        for step in whole.steps
    )
    return Schedule(f"{whole.name}, {number} of {of}", whole.ranks, whole.parts * of, tuple(steps))


@lru_cache(256)
def halved(whole: Schedule) -> tuple[Schedule, Schedule]:
    """A schedule whose results travel whole: the steps that sum streams, and those that hand all numbers on."""
    cut = next((k for k, step in enumerate(whole.steps) if not all(hop.add for hop in step)), len(whole.steps))
    return replace(whole, steps=whole.steps[:cut], sparse=Sparse()), replace(
        whole, steps=whole.steps[cut:], sparse=None
    )


def joined(name: str, first: Schedule, *others: Schedule) -> Schedule:
    """Schedules on the same parts, one after the other."""
    return Schedule(name, first.ranks, first.parts, sum((s.steps for s in others), first.steps))
