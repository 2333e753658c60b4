"""Candidates as a Search: their order, the bound that they are held against, and both in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.errors import PlanError
from partita.graph.graph import Graph
from partita.plan.memory import Recompute
from partita.searches.break_even import at_bandwidths
from partita.searches.candidate import Candidate, plainness, recipe_of
from partita.searches.explaining import WIDEST, bottleneck, break_even, excess
from partita.searches.memory_bound import memory_bound_of
from partita.searches.objective import objective_value
from partita.searches.search import Search
from partita.units import Seconds, show_bandwidth

At = Callable[[Candidate], Callable[[float], Seconds] | None]


def none_applies(refused: Sequence[tuple[str, str]]) -> PlanError:
    """The error where every call was refused; `refused` are calls and why."""
    return PlanError("no plan of the grid applies: " + "; ".join(sorted({why for _, why in refused})))


def ranked(
    graph: Graph, costs: Costs, found: Sequence[Candidate], refused: Sequence[tuple[str, str]], objective: str,
    bound: Seconds = 0.0, at: At | None = None,
) -> Search:  # fmt: skip
    """Candidates as a Search, in words; of equal ones the plainest, then that with the shortest call, is first. No step
    takes less than `bound` (0: than computing, perfectly divided). `at` says what a candidate's step takes
    where links are wider, if that is known (None: the clock says it). Raises PlanError where there are none."""
    if not found:
        raise none_applies(refused)
    cluster = costs.cluster
    value = partial(objective_value, cluster=cluster, objective=objective)
    order = _distinct(sorted(found, key=lambda c: (not c.fits, value(c), *plainness(c), len(c.plan.name))))
    bound = bound or _bound(graph, cluster, costs)
    least = _least(graph, costs, objective) or bound
    explained = tuple(_explained(c, order[0], cluster, objective, least) for c in order)
    words = tuple(filter(None, (explained[0].explanation, _turn(order, costs, objective, at))))
    first = replace(explained[0], explanation="; ".join(words))
    return Search(
        (first, *explained[1:]),
        0.0,
        bound,
        first.gap,
        f"{first.plan.name} is " + "\n".join(words),
        tuple(refused),
        costs.source,
        costs.because,
        objective=objective,
        lower_bound=least,
    )


def _distinct(order: Iterable[Candidate]) -> list[Candidate]:
    """Without those that compute again what nobody kept, and step, hold and send what another of the recipe does."""
    kept, met = list[Candidate](), set[tuple[object, ...]]()
    for one in order:
        t = one.timeline
        does = recipe_of(one.plan.name), t.step_seconds, t.memory, t.wire_sent
        if one.plan.memory.recompute is Recompute.NONE or does not in met:
            kept.append(one)
        met.add(does)
    return kept


def _bound(graph: Graph, cluster: Cluster, costs: Costs) -> Seconds:
    """No plan of this grid computes faster than a minibatch's work divided by all devices."""
    return _work(graph, costs) / sum(map(costs.pace, range(cluster.size)))


def _work(graph: Graph, costs: Costs) -> Seconds:
    """The core-seconds of the cheapest known way of a minibatch."""
    batch = graph.minibatch
    return min((costs.segment(0, len(graph.operators), n) * batch / n for n in costs.sizes), default=0.0)


def _least(graph: Graph, costs: Costs, objective: str) -> float:
    """What no plan has less of by an objective that is no time: bytes of the fullest rank, or the dollars of a
    minibatch's work on the cheapest device. 0 where seconds are counted."""
    if objective == "memory":
        return float(memory_bound_of(graph, costs.cluster).bytes)
    if objective == "cost":
        hourly = min(d.price / costs.pace(rank) for rank, d in enumerate(costs.cluster.devices))
        return _work(graph, costs) * hourly / 3600
    return 0.0


def _explained(each: Candidate, best: Candidate, cluster: Cluster, objective: str, bound: float) -> Candidate:
    words = bottleneck(each.timeline)
    mine, least = (objective_value(c, cluster, objective) for c in (each, best))
    if each is not best:
        words += f"; it would {excess(mine, least, objective)} as {best.plan.name}"
        words += "" if each.fits else ", and does not fit"
    return replace(each, explanation=words, gap=mine / bound - 1 if bound else 0.0)


def _turn(ranked: Sequence[Candidate], costs: Costs, objective: str, at: At | None) -> str:
    """What the runner-up loses, of another recipe if there is any, and the bandwidth at which it would win."""
    best, others, cluster = ranked[0], ranked[1:], costs.cluster
    recipe = recipe_of(best.plan.name)
    other = next((c for c in others if recipe_of(c.plan.name) != recipe), others[0] if others else None)
    if other is None:
        return ""
    mine, least = (objective_value(c, cluster, objective) for c in (other, best))
    words, own = f"{other.plan.name} would {excess(mine, least, objective)}", cluster.narrowest
    if not other.fits:
        return f"{words}, and does not fit"
    if objective == "memory" or not own or cluster.size < 2:
        return words
    weight = [value / c.timeline.step_seconds for c, value in ((best, least), (other, mine))]
    one, two = (at(each) if at else at_bandwidths(each.plan, costs) for each in (best, other))
    if one is None or two is None:
        return words
    turn = break_even(lambda f: weight[0] * one(f), lambda f: weight[1] * two(f), own)
    formula = ", by formula" if at else ""
    if turn is None:
        low, high = (show_bandwidth(own * factor) for factor in (1 / WIDEST, WIDEST))
        return f"{words} and wins at no bandwidth from {low} to {high}{formula}"
    return f"{words} and wins {'above' if turn[1] else 'below'} {show_bandwidth(turn[0])}{formula}"
