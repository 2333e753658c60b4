"""A collective that goes by a schedule as one activity: alone it lasts as long as its hops do one after the other.

rank 0  e --n-->  .           what ports carry and cores do is demand:   in(0) 2n   out(0) 2n   core(0) 2e + 2d   ...
        d  <--n-- . e         the rest of the makespan is latency:       4n + 2e + 2d - 2n of the busiest port
A hop starts when both its ranks are through the earlier steps of its strand and the ports on its way are free. It is
encoded before and decoded or added after, with nothing of its strand on the way meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partita.arrays import Ints, Reals
from partita.cost.costs import Costs
from partita.cost.demand import hop_columns, hop_cores, hop_parts
from partita.program.instruction import Collective
from partita.program.program import Program
from partita.simulator.ports import Ports
from partita.units import Seconds
from partita.wire.algorithms import course
from partita.wire.loads import HopLoad, loads_of

Columns = dict[str, NDArray[np.generic]]


def scheduled(
    program: Program, act: Collective, group: tuple[int, ...], costs: Costs, ports: Ports, speed: Reals,
    handling: Reals,
) -> Columns:  # fmt: skip
    """One transfer (see there) of a group's collective, without who takes part; ranks have a `speed` in coding and
    adding, and another one in `handling` messages."""
    members, rate = np.array(group, np.int64), ports.resources.rate
    schedule, edges = course(program, act, len(group))
    loads = loads_of(schedule, *program.extent(act, len(group)), act.codec, act.density, edges)
    hops = hop_columns(program, act, len(group))
    source, target, size = members[hops.source], members[hops.target], hops.size.astype(np.float64)
    (before, sending, receiving, after), cores = _priced(program, act, costs, members, source, target)
    message, resource, way = ports.routes(source, target)
    passed, entry = np.unique(resource, return_inverse=True)
    amount = np.bincount(entry, size[message], len(passed))
    handled = np.zeros(len(speed))
    np.add.at(handled, source, sending)
    np.add.at(handled, target, receiving)
    handled = handled[members]
    computed = cores - handled
    work = computed / speed[members] + handled / handling[members]
    thread = np.minimum(rate[members], 1.0)  # a rank's hops are one thread's, whose core-seconds are the `least`
    busiest = max(float((amount / rate[passed]).max(initial=0.0)), float((work / thread).max()))
    each = costs.wiring.hopping(size / hops.messages)
    # Seconds of a thread that no quota holds back: what a quota takes is demand.
    moving = sending / handling[source] + receiving / handling[target]
    busy = np.zeros(len(loads))
    np.maximum.at(busy, message, (size[message] / rate[resource]))
    coding = before / speed[source] + after / speed[target]
    wait = (way + each) * hops.messages + coding + np.maximum(moving - busy, 0.0)
    span = makespan(loads, ways_of(message, resource, len(loads)), wait, rate)
    return {
        "latency": np.array([max(span - busiest, 0.0)]), "least": np.array([work.max()]),
        "at": np.zeros(len(members) + len(passed), np.int64), "resource": np.concatenate([members, passed]),
        "amount": np.concatenate([work, amount]), "source": source, "target": target, "size": size,
    }  # fmt: skip


def _priced(
    program: Program, act: Collective, costs: Costs, members: Ints, source: Ints, target: Ints
) -> tuple[Reals, Reals]:  # fmt: skip
    """Core-seconds before, of sending, of receiving and after each hop, shape [4, hops], and of all of each member's,
    by the sheets of those who do it."""
    known, ranks = costs.sheets or (costs,), len(members)
    sheet = np.array(costs.sheet or np.zeros(costs.cluster.size), np.int64)
    parts, hop = np.stack([hop_parts(one, program, act, ranks) for one in known]), np.arange(len(source))
    from_, to = parts[sheet[source], :, hop].T, parts[sheet[target], :, hop].T
    cores = np.array([hop_cores(one, program, act, ranks) for one in known])
    return np.concatenate([from_[:2], to[2:]]), cores[sheet[members], np.arange(ranks)]


def ways_of(message: NDArray[np.integer[Any]], resource: NDArray[np.integer[Any]], count: int) -> list[list[int]]:
    """The resources that each of `count` messages passes."""
    ways: list[list[int]] = [[] for _ in range(count)]
    for one, port in zip(message.tolist(), resource.tolist(), strict=True):
        ways[one].append(port)
    return ways


def makespan(loads: Sequence[HopLoad], ways: Sequence[Sequence[int]], latency: Reals, rate: Reals) -> Seconds:
    """Seconds from the first hop to the end of the last, each with its latency, the ports on its way and their rates in
    bytes a second."""
    done, fresh, now = dict[tuple[int, int], Seconds](), dict[tuple[int, int], Seconds](), -1
    free, rates = dict[int, Seconds](), rate.tolist()
    for load, way, wait in zip(loads, ways, latency.tolist(), strict=True):
        if load.step != now:
            now = load.step
            done |= fresh
            fresh = {}
        ends = (load.source, load.strand), (load.target, load.strand)
        start = max(*(done.get(end, 0.0) for end in ends), *(free.get(port, 0.0) for port in way))
        busy = max((load.size / rates[port] for port in way), default=0.0)
        free |= dict.fromkeys(way, start + busy)
        for end in ends:
            fresh[end] = max(fresh.get(end, 0.0), start + busy + wait)
    return max([0.0, *done.values(), *fresh.values()])
