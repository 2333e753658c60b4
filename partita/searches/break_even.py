"""Whether a plan's codecs pay: the bandwidth up to which they save time, on one model and cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.lowering.lower import lower
from partita.plan.plan import Plan
from partita.recipes.catalogue import call
from partita.searches.explaining import MOST_RANKS, WIDEST, break_even, narrowest_link, widened
from partita.simulator.simulate import step_seconds
from partita.units import BytesPerSecond, Seconds, show_bandwidth
from partita.wire.algorithms import all_numbers
from partita.wire.codec import SPECS


@dataclass(frozen=True, slots=True)
class BreakEven:
    """`gain` is how many times faster a step is with the codecs; `even` the bandwidth of the narrowest link, nearest to
    the cluster's `own`, at which they cost as much time as they save (0: the order is the same from a sixteenth to
    sixteen times that)."""

    plan: str
    gain: float
    even: BytesPerSecond
    own: BytesPerSecond

    def __str__(self) -> str:
        low, high = (show_bandwidth(self.own * factor) for factor in (1 / WIDEST, WIDEST))
        if self.even:
            side = "above" if (self.gain > 1) == (self.even < self.own) else "below"
            here = f"{self.gain:.2f} times as fast here"
            return f"{self.plan}: its codec pays {side} {show_bandwidth(self.even)} ({here})"
        return f"{self.plan}: its codec {'pays' if self.gain > 1 else 'never pays'} from {low} to {high}"


def without_codecs(plan: Plan) -> Plan:
    """The plan's last phase without codecs, and with its momentum where the task has it."""
    syncs = tuple(replace(sync, wire=all_numbers(replace(sync.wire, codecs=()))) for sync in plan.sync)
    kept = tuple(one for one in plan.update.corrections if one.name != "momentum")
    return replace(plan, sync=syncs, update=replace(plan.update, corrections=kept), before=())


def break_even_of(plan: Plan, costs: Costs) -> BreakEven | None:
    """Where the codecs of a plan pay, predicted; None where it has none."""
    if not any(sync.wire.codecs for sync in plan.sync):
        return None
    both = replace(plan, before=()), without_codecs(plan)
    coded, plain = (lower(costs.graph, each, costs.cluster)[-1].program for each in both)
    known: dict[tuple[int, float], Seconds] = {}

    def seconds(which: int, factor: float) -> Seconds:
        if (which, factor) not in known:
            there = replace(costs, cluster=widened(costs.cluster, factor))
            known[which, factor] = step_seconds((coded, plain)[which], there)
        return known[which, factor]

    own, gain = narrowest_link(costs.cluster), seconds(1, 1.0) / seconds(0, 1.0)
    best = int(gain <= 1)
    turn = break_even(lambda f: seconds(best, f), lambda f: seconds(1 - best, f), own) if own else None
    return BreakEven(plan.name, gain, turn[0] if turn else 0.0, own)


def codec_baseline(graph: Graph, cluster: Cluster) -> tuple[Plan, ...]:
    """The plan on which every codec is looked at: gradients that are all-reduced, without one. None for one device, for
    more than a break-even is simulated for, or for more than there are samples."""
    some = 1 < cluster.size <= min(MOST_RANKS, graph.minibatch)
    return (call("ddp", graph, cluster),) if some else ()


def all_break_evens(costs: Costs) -> tuple[BreakEven, ...]:
    """Where every codec pays with its own settings, against `codec_baseline`."""
    graph, cluster = costs.graph, costs.cluster
    names = SPECS if codec_baseline(graph, cluster) else ()
    found = (break_even_of(call(f"ddp(codec={name})", graph, cluster, costs), costs) for name in names)
    return tuple(one for one in found if one)
