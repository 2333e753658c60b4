"""Plans of several minibatches against each other: the steps that each takes to a loss, times a step's seconds.

    minibatch   small ...................... large
    steps       half with each doubling ... stay         K(B), measured (`steps_to_loss`)
    a step      stays ... doubles with each doubling     predicted
    to a loss   falls ......... least ........ rises

Of minibatches that were not measured no rate is known, so none of them is proposed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from partita.errors import InputError, OptionError, PlanError
from partita.graph.batch import of_minibatch
from partita.graph.graph import Graph
from partita.searches.minibatch_choice import MinibatchChoice, both_good, in_words
from partita.searches.search import Search
from partita.searches.steps_to_loss import MeasuredMinibatch, StepsToLoss

TIMED: Final = 3  # minibatches whose plans `judge` ranks anew


def over_minibatches(
    graph: Graph, known: StepsToLoss, screen: Callable[[Graph], Search], judge: Callable[[Graph], Search] | None = None
) -> Search:
    """The search whose best plan is soonest at the target loss, of one for each minibatch that was measured: of others
    no rate is known. `screen` ranks the plans of a graph; `judge` those of the best three minibatches anew, which then
    come first. A minibatch that has no plan stands in `refused`.

    Raises OptionError where the steps are another task's, PlanError where no minibatch has a plan.
    """
    if known.task and known.task != graph.name:
        raise OptionError(
            f"--steps-to-loss holds the steps of {known.task}, and the task is {graph.name}; measure it, or leave the "
            "key task out of the file if they learn alike"
        )
    begun, refused, found = time.perf_counter(), list[tuple[str, str]](), dict[int, Search]()
    for point in known.points:
        try:
            found[point.batch] = screen(_sized(graph, point.batch))
        except InputError as error:
            refused.append((f"minibatches of {point.batch}", str(error)))
    if not found:
        raise PlanError("no minibatch has a plan: " + "; ".join(sorted({why for _, why in refused})))
    order = weighed(known, found)
    good = both_good(order)
    if judge:
        few = {each.point.batch: judge(_sized(graph, each.point.batch)) for each in order[:TIMED]}
        order, found = (*weighed(known, few), *order[TIMED:]), found | few
    order, best = tuple(replace(each, good=each.point.batch in good) for each in order), found[order[0].point.batch]
    return replace(
        best, minibatches=order, refused=(*best.refused, *refused), search_seconds=time.perf_counter() - begun,
        explanation=f"{best.explanation}\n{in_words(order, known)}",
    )  # fmt: skip


def weighed(known: StepsToLoss, found: Mapping[int, Search]) -> tuple[MinibatchChoice, ...]:
    """The best plan of each minibatch, those that fit first, the soonest at the loss before others."""
    law = known.law

    def of(point: MeasuredMinibatch, search: Search) -> MinibatchChoice:
        best = search.candidates[0]
        seconds = best.timeline.step_seconds
        return MinibatchChoice(point, law.steps(point.batch), best.plan.name, seconds, best.fits, search.costs)

    made = [of(point, found[point.batch]) for point in known.points if point.batch in found]
    return tuple(sorted(made, key=lambda each: (not each.fits, each.seconds)))


def _sized(graph: Graph, batch: int) -> Graph:
    """The graph for minibatches of another size. Raises PlanError where it holds for its own only."""
    if batch == graph.minibatch:
        return graph
    if not graph.symbolic:
        raise PlanError(f"the graph of {graph.name} was captured for {graph.batch} samples only")
    if graph.samples and batch > graph.samples:
        raise PlanError(f"{graph.name} has {graph.samples} samples")
    return of_minibatch(graph, batch)
