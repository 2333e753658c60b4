"""Costs of what plans do, measured by micro-benchmarks on the ranks of an open lab.

probe    operators | copies, updates, codecs, loading | links | some operators again       a minute or two, once
as_now   .......................................... a few operators again, now and then    between runs

A host's speed drifts by a tenth within minutes, so what was timed first is timed again last, and costs are what things
took on the average; `slowdowns` says how ranks differ, and `as_now` how much slower the host is by then.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from statistics import fmean, median
from typing import Any, Final, Protocol

import torch

from partita.cluster.cluster import Cluster
from partita.cost.cache import cache_place, read_cache, write_cache
from partita.cost.costs import Costs
from partita.cost.wiring import CURVED, Wiring
from partita.cost.workspaces import NONE
from partita.graph.batch import substitute
from partita.graph.graph import Graph
from partita.graph.signature import signature
from partita.lab.background_load import BEARABLE, HEAVY, BackgroundLoad
from partita.lab.contention import ranks_of, with_contention
from partita.lab.costing import precisions_of
from partita.lab.lab import Lab
from partita.lab.launching import launches_of, with_launching
from partita.lab.link_costs import sizes_for, wiring_of
from partita.lab.processor import processor_here
from partita.lab.replies import calls_of, coding_of, with_coding, workspaces_of
from partita.lab.slowdowns import as_then, of_all, pooled, steady
from partita.lab.timed_links import TimedLinks, drop_links, links_place, read_links, write_links
from partita.lowering.lower import lower
from partita.plan.plan import Plan
from partita.probes.codecs import coded_elements
from partita.probes.link_timing import CHAINED
from partita.probes.operator_timing import TOTAL
from partita.program.space import Kind
from partita.telling import Tell
from partita.units import Seconds

GLANCE: Final[Seconds] = 0.3  # of a core, for timing operators again between runs
RARE: Final = 8  # from one such time to the next: so many times as long as it takes, at least
LATELY: Final = 7  # times that count, the two when costs were measured among them


class Ask(Protocol):
    """Has all ranks answer a verb within so many seconds."""

    def __call__(self, verb: str, limit: Seconds, **payload: Any) -> list[dict[str, Any]]:
        """The replies, in the order of ranks."""


class Profiler:
    """Measures costs of `graph` on the `lab` of a cluster by what its ranks reply when they are `ask`ed; mutable, since
    it keeps what it has timed. `beside` has a sentence where other work on the machine was in the way."""

    def __init__(self, graph: Graph, cluster: Cluster, lab: Lab, ask: Ask, tell: Tell) -> None:
        self.graph, self.cluster, self.lab, self.ask, self.tell = graph, cluster, lab, ask, tell
        self.beside: list[str] = []
        self.launches, self.workspaces = dict[str, Seconds](), NONE
        self._kept = links_place(cluster, torch.__version__, *lab.notes)
        self._links: TimedLinks | None = None
        self._places = dict[bool, dict[str, Seconds]]()  # by whether all ranks are busy
        self._times = deque[tuple[float, ...]](maxlen=LATELY)  # each with every rank's slowdown
        self._unevenness, self._even = list[float](), (1.0,) * cluster.size
        self._due: Seconds = -inf  # when operators are to be timed again

    def probe(
        self, plans: Sequence[Plan], kinds: Collection[Kind] = CURVED, schedules: Collection[str] = ()
    ) -> Costs:  # fmt: skip
        """Costs of everything that the plans' programs do, by micro-benchmarks with all devices busy at once; of
        collectives of these kinds, and of all-reduces by each of these algorithms."""
        lonely, busy = batches_by_company(self.graph, self.cluster, plans)
        batches, steps, background = sorted({*lonely, *busy}), ["", *precisions_of(plans)], BackgroundLoad()
        self.tell(f"timing operators for {', '.join(map(str, batches))} samples")
        lone, early = self._operators(lonely, 1, steps)
        operators, sooner = self._operators(busy, self.cluster.size, steps)
        self.tell("timing copies, updates and links, about a minute")
        codecs = coded_elements(self.graph, plans, self.cluster)
        touches = self._touched(busy, self.cluster.size, operators, codecs=codecs, passes=False)
        touched = self._touched(lonely, 1, lone, codecs={} if busy else codecs, passes=bool(busy))
        touches = touches or touched
        wiring = self._wiring(kinds, schedules, max(busy, default=0)) if self.cluster.size > 1 else Wiring()
        self.tell("timing some operators again")
        late = self._slowdowns(lonely, 1, steps, lone)
        later = self._slowdowns(busy, self.cluster.size, steps, operators)
        lone, self._places[False], times = as_then(lone, self._places.get(False, {}), (early, late))
        if busy:
            operators, self._places[True], times = as_then(operators, self._places[True], (sooner, later))
        self._times, slowdowns = deque(times, maxlen=LATELY), steady(times)
        operators = {name: seconds / slowdowns[0] for name, seconds in lone.items()} | operators
        if (cores := background.cores()) > HEAVY:
            self._links = None
            drop_links(self._kept)
        if cores > BEARABLE:
            self.beside = [
                f"other work used {cores:.1f} cores of this machine while costs were measured, so neither predictions "
                "nor runs are what they are without it; repeat on a quiet machine"
            ]
        costs = Costs(
            self.graph, self.lab.cluster, operators, **calls_of(touches).given,
            alone=calls_of([{**touches[0], **touched[0]}]) if touched and busy else None, sizes=tuple(batches),
            wiring=with_coding(wiring, touches), hosts=self.lab.hosts,
            codecs={name: coding_of(touches, name) for name in codecs}, slowdowns=slowdowns,
            unevenness=fmean(self._unevenness), processor=processor_here(), workspaces=self.workspaces,
            at_hand=touches[0]["at_hand"],
        )  # fmt: skip
        return with_launching(costs, self.launches, touches)

    def _touched(
        self, batches: Sequence[int], ranks: int, operators: Mapping[str, Seconds], **what: Any
    ) -> list[dict[str, Any]]:
        """Replies of the first `ranks` ranks with `what` is touched between steps of so many samples."""
        age = seconds_alone(self.graph, self.cluster, operators, min(batches)) if batches else 0.0
        return self.ask("touches", 120.0, count=max(batches), age=age, ranks=ranks, **what)[:ranks] if batches else []

    def as_now(self, costs: Costs, plans: Sequence[Plan]) -> Costs:
        """Costs that `probe` measured for these plans, as the host is now: now and then some operators are timed
        again, for a host's speed drifts by a tenth within minutes. The last few times count. A model that is one
        operator keeps its costs; so do workers that took the place of those which measured them, for they have nothing
        to compare with."""
        lonely, busy = batches_by_company(self.graph, self.cluster, plans)
        if self.graph.rung == "opaque" or bool(busy) not in self._places:
            return costs
        if time.monotonic() >= self._due:
            ranks, steps = self.cluster.size if busy else 1, ["", *precisions_of(plans)]
            slowdowns = self._slowdowns(busy or lonely, ranks, steps, costs.operators, GLANCE)
            self._times.append(slowdowns)
        return replace(costs, slowdowns=steady(self._times))

    def _operators(
        self, batches: Sequence[int], ranks: int, steps: Sequence[str]
    ) -> tuple[dict[str, Seconds], tuple[float, ...]]:
        """(signature -> core-seconds, each rank's slowdown), timed while `ranks` devices are busy, since neighbours
        share caches and memory bandwidth."""
        if not batches:
            return {}, self._even
        cores = min(device.cores for device in self.cluster.devices)
        place = cache_place(torch.__version__, cores, ranks > 1)
        kept = all(device.hosted for device in self.cluster.devices)
        cached = read_cache(place) if kept else {}
        background = BackgroundLoad()
        replies = self._timed(batches, ranks, steps, cached)
        self._unevenness.append(median(reply["unevenness"] for reply in replies))
        reference = median(reply["reference"] for reply in replies)
        known = {name: value * reference for name, value in cached.items()}
        found, self._places[ranks > 1], slowdowns = pooled(replies, known)
        if kept and background.cores() <= BEARABLE:
            write_cache(place, found | self._places[ranks > 1], reference)
        return found, of_all(slowdowns, self.cluster.size)

    def _slowdowns(
        self, batches: Sequence[int], ranks: int, steps: Sequence[str], known: Mapping[str, Seconds],
        total: Seconds = TOTAL,
    ) -> tuple[float, ...]:  # fmt: skip
        """Each rank's slowdown, from timing some operators again whose core-seconds are `known`."""
        if not batches:
            return self._even
        begun = time.monotonic()
        replies = self._timed(batches, ranks, steps, (*known, *self._places[ranks > 1]), total)
        self._due = time.monotonic() + RARE * (time.monotonic() - begun)
        return of_all(pooled(replies, self._places[ranks > 1])[2], self.cluster.size)

    def _timed(
        self, batches: Sequence[int], ranks: int, steps: Sequence[str], known: Iterable[str], total: Seconds = TOTAL
    ) -> list[dict[str, Any]]:
        """Replies with the times of operators that are not known, and of some that are, on the first `ranks` ranks."""
        order: dict[str, Any] = {"batches": list(batches), "known": list(known), "ranks": ranks, "steps": list(steps)}
        replies = self.ask("operators", 600.0, total=total, **order)[:ranks]
        self.launches = launches_of(replies) | self.launches
        self.workspaces = workspaces_of(replies, self.workspaces)
        return replies

    def _wiring(self, kinds: Collection[Kind], schedules: Collection[str], batch: int) -> Wiring:
        """Costs of links: those that were timed first, or for another task some minutes ago, unless much other work was
        beside; and what messages cost computing `batch` samples."""
        sizes, last = sizes_for(self.cluster), self._links or read_links(self._kept)
        kept = last
        if not last.kinds.issuperset(kinds):
            wanted = [kind for kind in CURVED if kind in kinds or kind in last.kinds]
            replies = self.ask("wires", 300.0, sizes=list(sizes), kinds=wanted)
            found = wiring_of(replies, self.lab.cluster, self.lab.hosts)
            last = TimedLinks(frozenset(wanted), replace(found, schedules=last.wiring.schedules))
        if not {name for name, _ in last.wiring.schedules}.issuperset(schedules):
            asked = {"names": list(schedules), "sizes": [*(size for size in CHAINED if size < sizes[-1]), sizes[-1]]}
            rows = self.ask("schedules", 300.0, **asked)[0]
            timed = tuple((name, tuple((size, seconds) for size, seconds in rows[name])) for name in rows)
            last = replace(last, wiring=replace(last.wiring, schedules=timed))
        if last is not kept:
            write_links(self._kept, last)
        self._links = last
        if not batch:
            return last.wiring
        replies = self.ask("beside", 300.0, batch=batch, largest=sizes[-1], kinds=sorted(last.kinds))
        return with_contention(last.wiring, replies, ranks_of(self.lab.cluster, self.lab.hosts))


def batches_by_company(graph: Graph, cluster: Cluster, plans: Sequence[Plan]) -> tuple[list[int], list[int]]:
    """(batch sizes of the plans' segments for one device alone, those for several at once)."""
    programs = [s.program for plan in plans for s in lower(graph, plan, cluster)]
    alone, busy = (
        {s.batch for p in programs if (p.size > 1) is wanted for s in p.segments} for wanted in (False, True)
    )
    return sorted(alone - busy), sorted(busy)


def seconds_alone(graph: Graph, cluster: Cluster, operators: Mapping[str, Seconds], batch: int) -> Seconds:
    """What the operators of a step of `batch` samples, whose core-seconds are known, take the smallest device."""
    step = substitute(graph, batch)
    spent = sum(operators.get(signature(operator, step), 0.0) for operator in step.operators)
    return spent / min(device.cores or 1.0 for device in cluster.devices)
