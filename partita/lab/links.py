"""The link that holds a run up, from what waiting ranks report about their connections (transport/flows.py).

rank 1 ══ rank 2     bytes wait on both, and few or none are confirmed: what both have in common is rank 2's link
rank 2 ══ rank 3
rank 3    rank 0     nothing waits: a ring goes at the pace of its slowest link, and only connections over it are full
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from partita.cluster.cluster import Cluster
from partita.program.stall import name_ranks
from partita.transport.flows import Flow
from partita.units import Bytes, BytesPerSecond, Seconds, show_bandwidth

SILENT: Final[Seconds] = 3.0  # without a confirmation, where a run stands still: a link is cut
FULL: Final[Seconds] = 5.0  # that bytes wait without a pause: a link is the narrowest
FRESH: Final[Seconds] = 3.0  # ranks that stand still speak every second
SLOW: Final = 0.3  # of the bandwidth that the cluster says

Pair = frozenset[int]


@dataclass(frozen=True, slots=True)
class LinkReport:
    """What one rank reported at time `at` about its connections with another one: bytes `moved` in total; bytes waiting
    (`waits`) at every report since `since`, when `begun` bytes had moved; whether sent bytes are `unconfirmed`, and
    since when (`confirmed`) nothing has been confirmed."""

    at: Seconds
    moved: Bytes
    waits: bool
    unconfirmed: bool
    since: Seconds
    begun: Bytes
    confirmed: Seconds

    @property
    def silent(self) -> Seconds:
        """Seconds without any confirmation of bytes that were sent."""
        return self.at - self.confirmed


@dataclass
class Links:
    """What is known of the links between ranks; mutable, private to one request."""

    cluster: Cluster
    addresses: Sequence[str]
    seen: dict[tuple[int, int], LinkReport] = field(default_factory=dict)
    totals: dict[int, Bytes] = field(default_factory=dict)
    reported: set[Pair] = field(default_factory=set)

    def hear(self, rank: int, flows: Mapping[str, Sequence[int]], now: Seconds) -> bool:
        """Take a rank's report, by address the fields of a Flow; whether bytes have moved to or from it since its last
        one."""
        ours = {address: Flow(*flow) for address, flow in flows.items() if address in self.addresses}
        total = sum(flow.moved for flow in ours.values())
        before, self.totals[rank] = self.totals.get(rank, total), total
        place = {address: peer for peer, address in enumerate(self.addresses)}
        for address, flow in ours.items() if len(place) == len(self.addresses) else ():
            if (peer := place[address]) != rank:
                self.seen[rank, peer] = _report(self.seen.get((rank, peer)), now, flow)
        return total > before

    def cut(self, now: Seconds) -> tuple[Pair, str]:
        """The ranks whose link is cut, and a sentence; both empty if all sent bytes are confirmed."""
        pairs = {
            frozenset(ends): report.silent
            for ends, report in self.seen.items()
            if report.silent >= SILENT and now - report.at < FRESH
        }
        if not pairs:
            return frozenset(), ""
        shared, others = _shared(pairs)
        seconds = f"for {max(pairs.values()):.0f} s"
        if len(shared) == 1:
            (rank,) = shared
            return shared, (
                f"nothing passes between rank {rank} and {name_ranks(others)} {seconds}: rank {rank}'s link is down, "
                "or the network is parted there; all of these ranks are alive"
            )
        between = ", and between ".join(name_ranks(sorted(pair)) for pair in pairs)
        return shared or frozenset(min(pairs, key=sorted)), (
            f"nothing passes between {between} {seconds}: a link is down, or the network is parted; all of these ranks "
            "are alive"
        )

    def slow(self, now: Seconds) -> Iterator[str]:
        """A sentence for a link that has become so slow that the run stands still for it, once."""
        pairs = {
            frozenset(ends): (report.moved - report.begun) / (report.at - report.since)
            for ends, report in self.seen.items()
            if report.waits
            and now - report.at < FRESH
            and report.at - report.since >= FULL
            and report.moved > report.begun
        }
        shared, _ = _shared(pairs)
        if not shared or shared in self.reported:
            return
        rate, said = sum(pairs.values()), min(self._bandwidth(rank) for rank in shared)
        if rate < SLOW * said:
            self.reported.add(shared)
            whose = f"{'the link of' if len(shared) == 1 else 'what links'} {name_ranks(sorted(shared))}"
            yield (
                f"{whose} carries {show_bandwidth(rate)} and {self.cluster.name} says {show_bandwidth(said)}: the run "
                "waits for it, and goes on"
            )

    def _bandwidth(self, rank: int) -> BytesPerSecond:
        return min(port.link.bandwidth for port in self.cluster.climbs[rank])


def _report(last: LinkReport | None, now: Seconds, flow: Flow) -> LinkReport:
    """What a rank sees now of connections of which it saw `last` before."""
    waits, in_flight, moved = bool(flow.unconfirmed or flow.unsent), bool(flow.unconfirmed), flow.moved
    near = last is not None and now - last.at < FRESH
    on = last if near and waits and last and last.waits else None
    still = last if near and in_flight and last and last.unconfirmed and last.moved == moved else None
    since, begun = (on.since, on.begun) if on else (now, moved)
    return LinkReport(now, moved, waits, in_flight, since, begun, still.confirmed if still else now)


def _shared(pairs: Collection[Pair]) -> tuple[Pair, list[int]]:
    """The ranks that all pairs have in common, and the others."""
    every = frozenset[int]().union(*pairs)
    shared = every.intersection(*pairs)
    return shared, sorted(every - shared)
