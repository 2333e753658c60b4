"""The measured costs of a cluster's links: latency, bandwidth and processor time of messages and collectives by
size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from statistics import fmean, median
from typing import Any, Final

from partita.cluster.cluster import Cluster
from partita.cost.costs import Host
from partita.cost.rows import Curve
from partita.cost.wiring import CURVED, Measured, Wiring
from partita.lab.contention import Ranks, ranks_of, swapped
from partita.lab.link_rows import Hop, Round, crowds_by_peers, each_byte, hops_of, middle_of, quicker, rounds_of
from partita.lab.worker_group import WorkerGroup
from partita.probes.crowd_timing import Congested
from partita.probes.link_timing import CHAIN, FEW
from partita.program.instruction import Collective
from partita.program.program import Program
from partita.program.space import Kind
from partita.telling import Tell
from partita.units import Bytes, BytesPerSecond, Seconds

SMALL: Final[Bytes] = 2**14  # of a message that comes as a whole
RARE: Final[Seconds] = 4e-3  # of computing for each message: who serves one as seldom has slept
USUAL: Final = 0.95  # of a link's bandwidth is left for payload, where the processor is what limits a collective


def kinds_of(programs: Iterable[Program]) -> tuple[Kind, ...]:
    """The kinds of collectives whose curves the programs need: always an all-reduce's, by which messages are judged."""
    used = {act.kind for program in programs for act in program.acts(Collective)}
    return tuple(kind for kind in CURVED if kind in used or kind is Kind.ALL_REDUCE)


def wiring_of(replies: list[dict[str, Any]], cluster: Cluster, hosts: Sequence[Host] = ()) -> Wiring:
    """The transport's costs, fitted to the measurements on two or more devices, of which some share the cores of
    `hosts`.

    A message of n bytes takes the sender `start + sent n` and the receiver `start + received n` core-seconds, where
    `start` is what small ones to ranks that compute take at either end, of a few in a step. What an all-reduce
    takes beyond those of its 2 (p-1)/p n bytes is its additions. By how much longer the largest messages of a chain
    take than smaller ones tells the fraction of the bandwidth that payload gets, and the largest all-reduce by how
    much more of it such a sum takes than its bytes would, unless the processor limits them. What a round of
    computing and a collective, or this alone, takes beyond the seconds of its computing, of its bytes and of its
    core-seconds is latency. Messages' own is without that of the links on their way, which whoever prices them adds.
    """
    share, ranks = 2 * (cluster.size - 1) / cluster.size, ranks_of(cluster, hosts)
    curve, scatter, gather = (rounds_of(replies, kind) for kind in CURVED)
    tiny, last = curve[0], curve[-1]
    size, wall, core = last.size, last.wall, last.core
    sent, received = (each_byte(reply["message"]) for reply in replies[:2])
    reduced = max((core - tiny.core) - share * size * (sent + received), 0.0) / (share * size / 2)
    slowest, burst, quota, spread = ranks.slowest, ranks.burst, ranks.quota, ranks.spread
    hops = hops_of(replies, round_way(cluster))
    efficiency = _efficiency(hops, slowest, burst, (sent + received) / ranks.rate)
    achieved = max(share * size - burst, 1.0) / max(wall - tiny.wall, 1e-6) / slowest
    part = 1.0 if core / quota > wall / 2 else max(efficiency / max(achieved, 0.5), 1.0)

    def waits(rounds: Sequence[Round], share: float, many: int = 1) -> Curve:
        def latency(one: Round) -> Seconds:
            """Beyond what the quota takes for a round's core-seconds, or else shared cores and ports for its parts."""
            bytes_ = part * (share * one.size * many - burst) / (slowest * efficiency)
            return one.wall - max((one.ahead + one.core) / quota, one.ahead * spread + max(bytes_, one.core * spread))

        return tuple((one.size, max(latency(one), 1e-6) / many, one.core / many, part) for one in rounds)

    sums, row = waits(curve, share), waits(rounds_of(replies, "row"), share, CHAIN)
    calls = _starts(replies, (sent + received) / 2)
    called = (replies[0]["value"][1] + replies[1]["value"][1]) / 2
    alone = Wiring(
        message=max(replies[1]["lone"][0] - ranks.way - calls["start"], 1e-6),
        curves=Measured(sums, waits(scatter, share / 2), waits(gather, share / 2)),
        sent=sent, received=received, reduced=reduced, efficiency=efficiency,
        value=max(replies[1]["value"][0] - ranks.way - called, 1e-6),
        value_start=median(reply["handed"] for reply in replies if reply["handed"]), row=_behind_others(sums, row),
        rested=median(one.ahead for one in curve), **calls,
    )  # fmt: skip
    return _crowded(alone, replies, hops, ranks)


def round_way(cluster: Cluster) -> Seconds:
    """The latency of links from a rank to the next one, a mean round all ranks."""
    return fmean(cluster.way(rank, (rank + 1) % cluster.size) for rank in range(cluster.size))


def _behind_others(alone: Curve, row: Curve) -> Curve:
    """The curve of sums right behind another, from means of CHAIN the first of which is by itself; they take no less
    than that one, and the same beyond the sizes of the `row`."""

    def follows(mean: Seconds, first: Seconds) -> Seconds:
        return max((CHAIN * mean - first) / (CHAIN - 1), first)

    pairs = zip(row, alone, strict=False)
    found = ((a[0], follows(a[1], b[1]), follows(a[2], b[2]), a[3]) for a, b in pairs)
    return (*found, *alone[len(row) :])


def _starts(replies: list[dict[str, Any]], each: Seconds) -> dict[str, Any]:
    """What of a Wiring is about the calls of messages, where a byte takes `each` core-seconds at an end: medians over
    the ranks."""

    def rows(kind: str) -> list[tuple[float, Bytes, Seconds]]:
        spells = zip(*(reply["posted"] for reply in replies), strict=True)
        timed = [zip(*(one[kind] for one in spell if one[kind]), strict=True) for spell in spells]
        return quicker([middle_of(ranks) for ranks in spell] for spell in timed)

    (_, _, rare), (many, _, often), (together, _, joint), (_, size, whole) = rows("busy")
    waking = max(whole - rare - each * size, 0.0)
    often, rare = max(often, joint), max(rare, often, joint)
    ((apart, _, start),) = rows("serving")
    return {
        "starts": ((1, rare), (many, often), (together, joint)), "joint": ((1, 1.0), (together / many, joint / often)),
        "serving": ((apart, min(start, joint)), (max(RARE, 2 * apart), rare)),
        "start": often, "waking": ((min(SMALL, size // 2), 0.0), (size, waking)),
    }  # fmt: skip


def _efficiency(hops: Sequence[Hop], slowest: BytesPerSecond, burst: Bytes, each: Seconds) -> float:
    """The fraction of the bandwidth that payload gets, from what longer messages of a chain take longer in the quickest
    chains: a host that is busy holds others up, and the link is not what they wait for. What a port saves up for a
    `burst` while one message is followed by the next goes at once. Where `each` byte takes about as much of the
    processor as of the link, the usual one."""
    (short, sooner), (long, later) = ((hop.size, hop.quickest) for hop in (hops[1], hops[-1]))
    if 2 * each * slowest > 1:
        return USUAL
    saved = min(burst, sooner * slowest)
    return min(max((long - short - saved) / max(later - sooner, 1e-6) / slowest, 0.5), 1.0)


def _crowded(alone: Wiring, replies: list[dict[str, Any]], hops: Sequence[Hop], ranks: Ranks) -> Wiring:
    """The costs of links where messages are not `alone`, but in chains (`hops`) or in crowds."""
    hop_start = hops[0].core / 2  # who waits for each message wakes up for each
    asleep = median(reply["waking"] for reply in replies)
    waits = tuple((hop.size, max(hop.wall - swapped(alone, ranks, hop.size, hop_start), 1e-6)) for hop in hops)
    crowds = crowds_by_peers(replies[-1]["crowds"])
    served = crowds.pop(0, ())
    return replace(
        alone, hops=waits, hop_start=hop_start, first_hop=max(asleep - FEW * hops[0].core, 0.0),
        congestion=_congestion(served, lambda size: swapped(alone, ranks, size, rate=ranks.quota)),
        crowding=tuple((n, _congestion(rows, partial(swapped, alone, ranks))) for n, rows in crowds.items()),
        queue=tuple((size, queue_of(size, ends)) for size, ends in replies[-1].get("queued", ())),
    )  # fmt: skip


def _congestion(
    rows: Iterable[Congested], own: Callable[[Bytes], Seconds]
) -> tuple[tuple[Bytes, float], ...]:  # fmt: skip
    """By size, how many times as long as `own` seconds each message takes of a rank that swaps many with others."""
    return tuple((size, max(wall / many / own(size), 1.0)) for size, many, wall in rows)


def queue_of(size: Bytes, ends: Sequence[Seconds]) -> float:
    """How many bytes leave in order before the rest is shared, where of messages of `size` bytes that were posted at
    once the first posted, the second, ... came at these `ends`.

    In order n messages come at 1, 2, ..., n times what one takes, evenly shared all at n times that; the sum of the
    ends falls from n n to n (n + 1) / 2 as the queue gets longer.
    """
    n = len(ends)
    total = n * sum(ends) / max(ends)
    for whole in range(n - 1):
        part = (whole * (whole + 1) / 2 + n * (n - whole) - total) / (n - whole - 1)
        if part <= 1:
            return (whole + max(part, 0.0)) * size
    return float((n - 1) * size)


def probe_links(cluster: Cluster, tell: Tell) -> dict[str, Any]:
    """Latency, payload bandwidth (bytes a second, of the narrowest link) and processor costs of a cluster's links,
    measured; None for what one device alone does not have."""
    if cluster.size == 1:
        alone = ["one device sends no messages: nothing to measure"]
        return {"cluster": cluster.name, "bandwidth": None, "wiring": None, "notes": alone}
    with WorkerGroup(cluster, listen=True) as group:
        tell(f"measuring the links of {cluster.name}")
        group.ask_all("join", {"timeout": 60.0}, 60.0)
        wiring = wiring_of(
            group.ask_all("wires", {"sizes": list(sizes_for(cluster)), "kinds": list(CURVED)}, 300.0),
            group.lab.cluster,
            group.lab.hosts,
        )
        payload = wiring.efficiency * cluster.narrowest
        notes = list(group.lab.notes)
        return {"cluster": cluster.name, "bandwidth": payload, "wiring": asdict(wiring), "notes": notes}


def sizes_for(cluster: Cluster) -> tuple[Bytes, ...]:
    """Message sizes, of which the largest takes about a tenth of a second; four bytes are one rank's part of a sum, and
    others' parts are none."""
    largest = int(min(max(cluster.narrowest * 0.1, 2**17), 2**25))
    return (4, *(size for size in (2**10, 2**14, 2**16, 2**18, 2**20, 2**22) if size < largest), largest)
