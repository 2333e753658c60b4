"""A collective as data: who sends which part of a vector to whom, step by step.

    parts     the vector in `parts` parts of about equal length, the first ones longer by one
    hop       0 --[1:2]--> 3 +     rank 0 sends part 1 to rank 3, which adds it to its own
              0 --[1:2]--> 3       ... which replaces its own by it
    step      hops that may overlap: each sends what its sender held when the step began
    strands   parts k, k + strands, ... go through the steps by themselves, whatever those of other strands wait for
    sparse    parts are sent as streams of the elements that are not 0 (see `streams`), of lengths known at run time

A rank carries out its own hops step by step, and waits for no others. The simulator derives times and bytes from a
schedule, the worker its sends and receives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Final

from partita.errors import ProgramError
from partita.units import Bytes

HALVES: Final = 2  # strands: one is on its way while the other is added or coded
HALF: Final[Bytes] = 2**20  # of a message; two of less take longer than what they hide


@dataclass(frozen=True, slots=True)
class Hop:
    """Parts `start` to `stop` are sent from `source` to `target`, which adds them to its own (`add`) or replaces its
    own.

    `source` and `target` are positions in the group of the collective, from 0.
    """

    source: int
    target: int
    start: int
    stop: int
    add: bool

    def __str__(self) -> str:
        return f"{self.source} --[{self.start}:{self.stop}]--> {self.target}{' +' * self.add}"


Step = tuple[Hop, ...]
Steps = list[list[Hop]]  # those of a schedule that is being drawn


@dataclass(frozen=True, slots=True)
class Sparse:
    """How parts are sent as sparse streams.

    Partial sums are streams; results are streams as well (SparCML's SSAR), or dense if `whole` (DSAR). With `maps` both
    ends of a hop remember the indices of the entries, which are sent again only when they have changed (Kylix).
    """

    whole: bool = False
    maps: bool = False


@dataclass(frozen=True, eq=False)
class Schedule:
    """The steps of a collective among `ranks` ranks on a vector of `parts` parts. Schedules compare by identity."""

    name: str
    ranks: int
    parts: int
    steps: tuple[Step, ...]
    sparse: Sparse | None = None
    strands: int = 1

    def __str__(self) -> str:
        lines = [f"{i:4}  " + "   ".join(map(str, step)) for i, step in enumerate(self.steps)]
        return "\n".join([f"{self.name}, {self.ranks} ranks, {self.parts} parts", *lines])


def even_edges(elements: int, parts: int) -> tuple[int, ...]:
    """The edges of `parts` parts of a vector, from 0 to `elements`: as equal as possible, the first ones longer by
    one."""
    share, rest = divmod(elements, parts)
    return tuple(accumulate((share + (i < rest) for i in range(parts)), initial=0))


def schedule(name: str, ranks: int, parts: int, steps: list[list[Hop]]) -> Schedule:
    """A Schedule of the steps that have hops. Raises ProgramError for a hop of a rank or part that does not exist."""
    for hop in (hop for step in steps for hop in step):
        if hop.source == hop.target or not 0 <= min(hop.source, hop.target) <= max(hop.source, hop.target) < ranks:
            raise ProgramError(f"{name}: the hop {hop} is not between two of {ranks} ranks")
        if not 0 <= hop.start < hop.stop <= parts:
            raise ProgramError(f"{name}: the hop {hop} moves parts that a vector of {parts} does not have")
    return Schedule(name, ranks, parts, tuple(tuple(step) for step in steps if step))


@lru_cache(256)
def own_steps(schedule: Schedule, rank: int) -> tuple[tuple[int, tuple[Hop, ...], tuple[Hop, ...]], ...]:
    """(number, hops to `rank`, hops from it) for each step in which the rank takes part."""
    found = (
        (number, tuple(hop for hop in step if hop.target == rank), tuple(hop for hop in step if hop.source == rank))
        for number, step in enumerate(schedule.steps)
    )
    return tuple((number, coming, going) for number, coming, going in found if coming or going)


@lru_cache(256)
def summed_once(whole: Schedule) -> bool:
    """Whether one rank alone has added each part up at the end, and all others have its sum. Ranks that add up the same
    each by themselves, as partners in an exchange do, have unlike sums where messages are encoded."""
    last = {(hop.target, part): hop.add for step in whole.steps for hop in step for part in range(hop.start, hop.stop)}
    return all(sum(last.get((r, part), True) for r in range(whole.ranks)) == 1 for part in range(whole.parts))


@lru_cache(256)
def stranded(whole: Schedule, of: int) -> Schedule:
    """The same steps in `of` strands: each part is cut into so many subparts, one of each strand."""
    steps = (
        tuple(
            Hop(hop.source, hop.target, part * of + number, part * of + number + 1, hop.add)
            for number in range(of)
            for hop in step
            for part in range(hop.start, hop.stop)
        )
        for step in whole.steps
    )
    return Schedule(f"{whole.name} in {of} strands", whole.ranks, whole.parts * of, tuple(steps), strands=of)


@lru_cache(256)
def strands_of(whole: Schedule) -> tuple[Schedule, ...]:
    """The steps of each strand."""
    if whole.strands == 1:
        return (whole,)
    kept = [
        tuple(tuple(hop for hop in step if hop.start % whole.strands == number) for step in whole.steps)
        for number in range(whole.strands)
    ]
    return tuple(replace(whole, steps=steps, strands=1) for steps in kept)


def in_halves(
    whole: Schedule, edges: tuple[int, ...], message: Bytes, least: Bytes | None = None
) -> tuple[Schedule, tuple[int, ...]]:
    """The schedule and its edges in two strands, if two halves of its longest `message` have `least` bytes (None: HALF)
    each; as they are if not."""
    if message < HALVES * (HALF if least is None else least):
        return whole, edges
    return stranded(whole, HALVES), cut(edges, HALVES)


def cut(edges: Sequence[int], of: int) -> tuple[int, ...]:
    """The edges between subparts, of which each part has `of`."""
    inner = (start + (stop - start) * k // of for start, stop in pairwise(edges) for k in range(of))
    return (*inner, edges[-1])


@lru_cache(256)
def halved(whole: Schedule) -> tuple[Schedule, Schedule]:
    """The two halves of a schedule with dense results: the steps that sum streams, and those that distribute
    results."""
    cut = next((k for k, step in enumerate(whole.steps) if not all(hop.add for hop in step)), len(whole.steps))
    return replace(whole, steps=whole.steps[:cut], sparse=Sparse()), replace(
        whole, steps=whole.steps[cut:], sparse=None
    )


def joined(name: str, first: Schedule, *others: Schedule) -> Schedule:
    """One schedule after the other, on the same parts."""
    return Schedule(name, first.ranks, first.parts, sum((s.steps for s in others), first.steps))
