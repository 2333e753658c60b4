"""Whether a plan's codecs pay: the bandwidth up to which they save time, on one model and cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.errors import InputError
from partita.graph.graph import Graph
from partita.lowering.lower import check_lowered, last_program
from partita.plan.plan import Plan
from partita.recipes.catalogue import call
from partita.recipes.reading import with_knob
from partita.searches.explaining import MOST_RANKS, WIDEST, break_even, widened
from partita.searches.space import usual
from partita.simulator.simulate import step_seconds
from partita.telling import Tell, quiet
from partita.units import BytesPerSecond, Seconds, show_bandwidth
from partita.wire.algorithms import all_numbers
from partita.wire.codec import SPECS

At = Callable[[Plan, Costs], Callable[[float], Seconds]]


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
        if self.even:
            side = "above" if (self.gain > 1) == (self.even < self.own) else "below"
            here = f"{self.gain:.2f} times as fast here"
            return f"{self.plan}: its codec pays {side} {show_bandwidth(self.even)} ({here})"
        return f"{self.plan}: its codec {'' if self.gain > 1 else 'never '}{self.there}"

    @property
    def there(self) -> str:
        """Over which bandwidths the order is the same."""
        low, high = (show_bandwidth(self.own * factor) for factor in (1 / WIDEST, WIDEST))
        return f"pays from {low} to {high}"


def in_lines(found: Sequence[BreakEven]) -> tuple[str, ...]:
    """A line for each, but one for all whose codecs pay everywhere, and one for all whose codecs pay nowhere."""
    lines = [str(one) for one in found if one.even]
    for gains, word in ((True, "each"), (False, "none")):
        alike = [one for one in found if not one.even and (one.gain > 1) == gains]
        plans = ", ".join(one.plan for one in alike)
        lines += [f"{plans}: {word} of their codecs {alike[0].there}"] if len(alike) > 1 else map(str, alike)
    return tuple(lines)


def without_codecs(plan: Plan) -> Plan:
    """The plan's last phase without codecs, and with its momentum where the task has it."""
    syncs = tuple(replace(sync, wire=all_numbers(replace(sync.wire, codecs=()))) for sync in plan.sync)
    kept = tuple(one for one in plan.update.corrections if one.name != "momentum")
    return replace(plan, sync=syncs, update=replace(plan.update, corrections=kept), before=())


def break_even_of(plan: Plan, costs: Costs, at: At | None = None) -> BreakEven | None:
    """Where the codecs of a plan pay, predicted; None where it has none. `at`: what plans without codecs take, where
    it is kept for several plans (None: `at_bandwidths`)."""
    if not any(sync.wire.codecs for sync in plan.sync):
        return None
    coded, plain = at_bandwidths(replace(plan, before=()), costs), (at or at_bandwidths)(without_codecs(plan), costs)
    own, gain = costs.cluster.narrowest, plain(1.0) / coded(1.0)
    best, other = (coded, plain) if gain > 1 else (plain, coded)
    turn = break_even(best, other, own) if own else None
    return BreakEven(plan.name, gain, turn[0] if turn else 0.0, own)


def at_bandwidths(plan: Plan, costs: Costs) -> Callable[[float], Seconds]:
    """What a step of the plan's last phase takes where all links are so many times as wide; each is simulated once."""
    program = last_program(costs.graph, plan, costs.cluster)

    @cache
    def seconds(factor: float) -> Seconds:
        return step_seconds(program, replace(costs, cluster=widened(costs.cluster, factor)))

    return seconds


def codec_baseline(graph: Graph, cluster: Cluster) -> tuple[Plan, ...]:
    """The plan on which every codec is looked at, the `usual` one, whose gradients are all-reduced in a bounded number
    of messages. None for one device, for more than a break-even is simulated for, or where it cannot be carried out."""
    some = 1 < cluster.size <= MOST_RANKS
    return tuple(_possible([usual(graph)], graph, cluster)) if some else ()


def _possible(texts: Iterable[str], graph: Graph, cluster: Cluster, costs: Costs | None = None) -> Iterator[Plan]:
    """The plans of these texts that can be carried out."""
    for text in texts:
        with suppress(InputError):
            check_lowered(graph, plan := call(text, graph, cluster, costs), cluster)
            yield plan


def all_break_evens(costs: Costs, tell: Tell = quiet) -> tuple[BreakEven, ...]:
    """Where every codec that can be had pays with its own settings, against `codec_baseline`, which is simulated once
    for all of them."""
    graph, cluster, known = costs.graph, costs.cluster, dict[Plan, Callable[[float], Seconds]]()

    def at(plan: Plan, costs: Costs) -> Callable[[float], Seconds]:
        does = replace(plan, name="")
        if does not in known:
            known[does] = at_bandwidths(plan, costs)
        return known[does]

    found = list[BreakEven]()
    for name in SPECS if codec_baseline(graph, cluster) else ():
        tell(f"simulating where codecs pay: {name}")
        text = with_knob(usual(graph), f"codec={name}")
        for plan in _possible([text], graph, cluster, costs):
            if (one := break_even_of(plan, costs, at)) is not None:
                found.append(one)
    return tuple(found)
