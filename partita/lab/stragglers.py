"""Ranks that take longer than others for the same work, in sentences: because of their processor, or because of
their data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from statistics import median
from typing import Any, Final, TypeAlias

from partita.cluster.cluster import Cluster
from partita.program.instruction import Act, Compute, Load
from partita.program.program import Program
from partita.program.timeline import Timeline
from partita.runtime.pace import Pace
from partita.units import Seconds

FACTOR: Final = 1.75
SHARE: Final = 0.1
Taken: TypeAlias = dict[tuple[int, str], Seconds]  # by a rank's instruction, in the best round of its kind


@dataclass
class StragglerDetector:
    """The speeds at which the ranks of a running Program do their own work; mutable, private to one run.

    A rank is reported once if it takes FACTOR times as long to compute, or to load, as the median of the ranks with the
    same work, and this is more than SHARE of a round. Speeds and quotas in the cluster are taken into account, and of
    each kind of work the best recent round counts, so that noise is not reported.
    """

    program: Program
    cluster: Cluster
    taken: Taken = field(default_factory=dict)
    rounds: dict[int, Seconds] = field(default_factory=dict)
    reported: set[tuple[int, str]] = field(default_factory=set)

    def hear(self, rank: int, pace: Mapping[str, Any]) -> Iterator[str]:
        """Take a rank's report: seconds a round, and what its own work took in the best. Yields a sentence for each
        straggler, once all ranks have reported."""
        self.rounds[rank] = pace["round"]
        self.taken |= {(rank, name): seconds for name, seconds in pace["taken"].items()}
        if all(each in self.rounds for role in self.program.roles for each in role.ranks):
            yield from self._judge(self.taken, self.rounds)
            self.taken, self.rounds = {}, {}

    def at_end(self, timeline: Timeline) -> Iterator[str]:
        """Yields a sentence for each straggler of the last rounds of a run, but for what only a shorter one has."""
        paces = {rank: Pace() for rank in range(self.program.size)}
        for span in sorted(timeline.spans, key=lambda span: span.round):
            known = self.program.role_of[span.rank].on_name.get(span.name)
            if known is not None and isinstance(act := known.act, Compute | Load):
                paces[span.rank].note(type(act).__name__, span.round, span.name, span.end - span.start)
        taken = {(rank, name): took for rank, pace in paces.items() for name, took in pace.last_taken().items()}
        each = timeline.step_seconds * self.program.steps
        yield from self._judge(taken, dict.fromkeys(range(self.program.size), each))

    def _judge(self, taken: Taken, rounds: Mapping[int, Seconds]) -> Iterator[str]:
        for what, kind, where in WORK:
            for rank, (own, others) in _seconds(self.program, taken, self.cluster, kind).items():
                slow = own > FACTOR * others and own - others > SHARE * rounds.get(rank, inf)
                if slow and (rank, what) not in self.reported:
                    self.reported.add((rank, what))
                    yield f"rank {rank} {what} {own / others:.1f} times as long as the others do: {where}"


def _segment(act: Act) -> str:
    return f"{act.segment}" if isinstance(act, Compute) else ""


def _samples(act: Act) -> str:
    return f"{act.count}" if isinstance(act, Load) and act.fetch else ""


WORK: Final = (
    ("computes", _segment, "its processor is slower than the cluster says, or busy with something else"),
    ("loads its samples", _samples, "the data is slow there, not the computing"),
)


def _seconds(
    program: Program, taken: Taken, cluster: Cluster, kind: Callable[[Act], str]
) -> dict[int, tuple[Seconds, Seconds]]:
    """Rank -> (seconds of its work of a kind in a round, the median over other ranks of the seconds of the same
    work), scaled to its own device."""
    work: dict[tuple[str, ...], dict[int, Seconds]] = {}
    for role in program.roles:
        names = [i.name for i in role.instructions if kind(i.act)]
        same = tuple(kind(role.on_name[name].act) for name in names)
        for rank in role.ranks if same else ():
            if all((rank, name) in taken for name in names):
                pace = cluster.devices[rank].pace
                work.setdefault(same, {})[rank] = pace * sum(taken[rank, name] for name in names)
    return {
        rank: (own, median(other for peer, other in ranks.items() if peer != rank))
        for ranks in work.values()
        if len(ranks) > 1
        for rank, own in ranks.items()
    }
