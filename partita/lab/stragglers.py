"""Ranks that take longer for the same work than the others, in sentences: whose processor, whose data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from typing import Final

from partita.cluster.cluster import Cluster
from partita.program.instruction import Act, Compute, Load
from partita.program.program import Program
from partita.program.timeline import Timeline
from partita.units import Seconds

FACTOR: Final = 1.75
SHARE: Final = 0.1


def stragglers(program: Program, timeline: Timeline, cluster: Cluster) -> Iterator[str]:
    """A sentence for each rank that computes, or loads, FACTOR times as long as the median of those that do the same
    work, where that is more than SHARE of the step. What the cluster says of speeds and quotas is expected, and of an
    instruction the quickest instance counts: noise is none."""
    computing, loading = (_seconds(program, timeline, cluster, kind) for kind in (_segment, _samples))
    for what, found, where in (
        ("computes", computing, "its processor is slower than the cluster says, or busy with something else"),
        ("loads its samples", loading, "the data is slow there, not the computing"),
    ):
        for rank, (own, others) in found.items():
            if own > FACTOR * others and own - others > SHARE * timeline.step_seconds * program.steps:
                yield f"rank {rank} {what} {own / others:.1f} times as long as the others do: {where}"


def _segment(act: Act) -> str:
    return f"{act.segment}" if isinstance(act, Compute) else ""


def _samples(act: Act) -> str:
    return f"{act.count}" if isinstance(act, Load) and act.fetch else ""


def _seconds(
    program: Program, timeline: Timeline, cluster: Cluster, kind: Callable[[Act], str]
) -> dict[int, tuple[Seconds, Seconds]]:
    """Rank -> (what its work of a kind takes in a round, what the same work takes the median of the other ranks), as if
    all devices were as fast as its own."""
    quickest: dict[tuple[int, str], Seconds] = {}
    for span in timeline.spans:
        if kind(program.role_of[span.rank].on_name[span.name].act):
            place = span.rank, span.name
            quickest[place] = min(quickest.get(place, float("inf")), span.end - span.start)
    work: dict[tuple[str, ...], dict[int, Seconds]] = {}
    for role in program.roles:
        names = [i.name for i in role.instructions if kind(i.act)]
        same = tuple(kind(role.on_name[name].act) for name in names)
        for rank in role.ranks if same else ():
            if all((rank, name) in quickest for name in names):
                pace = cluster.devices[rank].pace
                work.setdefault(same, {})[rank] = pace * sum(quickest[rank, name] for name in names)
    return {
        rank: (own, median(other for peer, other in ranks.items() if peer != rank))
        for ranks in work.values()
        if len(ranks) > 1
        for rank, own in ranks.items()
    }
