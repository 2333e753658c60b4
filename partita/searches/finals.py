"""A search in two rounds: data sheets rank everything, measured costs judge the best of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from partita.cost.costs import Costs
from partita.searches.exhaustive import Candidate, Search, exhaustive, recipe_of

# Every batch size whose operators are to be timed takes seconds on half a core: the whole grid would take minutes.
FINALISTS: Final = 8
OF_ONE_RECIPE: Final = 3


def finalists(search: Search, most: int = FINALISTS) -> tuple[Candidate, ...]:
    """The best candidates of a screening, at most three settings of one recipe: what is screened by may misjudge a
    method as a whole, and near settings would fill the list."""
    kept: list[Candidate] = []
    for candidate in search.candidates:
        name = recipe_of(candidate)
        if len(kept) < most and sum(recipe_of(c) == name for c in kept) < OF_ONE_RECIPE:
            kept.append(candidate)
    return tuple(kept)


def judged(
    screened: Search, few: Sequence[Candidate], costs: Costs, *, objective: str, allow: str,
    tell: Callable[[str], None],
) -> Search:  # fmt: skip
    """The finalists ranked by measured `costs`; the screening itself, and why, where nothing could be measured."""
    if costs.source != "measured":
        return replace(screened, because=costs.because)
    calls = [candidate.plan.name for candidate in few]
    final = exhaustive(costs.graph, costs.cluster, costs, calls=calls, objective=objective, allow=allow, tell=tell)
    fields = {name: getattr(screened, name) for name in ("refused", "space", "fitting", "clocked")}
    return replace(final, **fields)
