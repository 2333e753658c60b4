"""The points of a grid that are worth simulating, by formula."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np

from partita.arrays import Ints, Reals
from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.cost.datasheet import datasheet_costs
from partita.cost.launching import slower
from partita.errors import InputError
from partita.graph.gc_pause import without_gc
from partita.graph.graph import Graph
from partita.lowering.lower import check_lowered
from partita.plan.memory import Precision
from partita.plan.plan import Plan
from partita.recipes.catalogue import RECIPES, call
from partita.searches.best_first import FEW_DEVICES
from partita.searches.candidate import recipe_of
from partita.searches.codings import coded
from partita.searches.estimates import Estimates, estimates_of
from partita.searches.exhaustive import grid
from partita.searches.footprint import rooms_of
from partita.searches.half_precision import quicker, rounded
from partita.searches.objective import ALLOWED, check_objective, objective_values
from partita.searches.ranking import none_applies
from partita.searches.space import Space, least_bucket, space_of, usual
from partita.searches.stage_cuts import cuts_of
from partita.units import Bytes, Seconds
from partita.wire.codec import SPECS

SLACK: Final = 0.15  # by which the formula may overrate a peak
ROUNDED: Final = 4  # points of few devices, the best ones, that are looked at in TF32 and bf16 too
OTHER_RECIPES: Final = ("ps_sync", "pipe_sgd", "local_sgd")  # what the grid has no column for
# What joins them where `allow` lets it through: recipes as they are, and codecs of gradients that are all-reduced. Not
# what takes the steps of another one in the end (post_local_sgd those of local_sgd, eamsgd of easgd), nor parallel_sgd,
# whose steps send nothing: by time alone it would be first wherever it is let in.
DELAYED: Final = ("ps_async", "downpour", "ssp", "softsync", "dynsgd", "dc_asgd")
CONSENSUS: Final = ("diloco", "d_psgd", "gossip", "ad_psgd", "easgd", "admm")
OTHER_CLASSES: Final = {"exact": (), "lossy": (), "delayed": DELAYED, "any": (*DELAYED, *CONSENSUS)}

MOST_RANKED: Final = 4096
SHARES: Final = (1.0, 0.85, 0.7, 0.55, 0.4, 1e-9)  # of the memory, that a point may take by formula where it is tight
LEAST_STAGES: Final = 32  # also on few devices: of what recomputing makes again, a stage of a fine cut is there at once
MOST_STAGES: Final = 192


@dataclass(frozen=True)
class Listed:
    """A plan that is worth simulating: its step and the bytes of its fullest rank by formula, both infinite where the
    grid has no point for it."""

    plan: Plan
    seconds: Seconds
    memory: float


@dataclass(frozen=True)
class Shortlist:
    """The part of a grid that is worth simulating.

    listed     plans, best first
    points     the rows of the grid that they are from
    estimates  all points by formula
    fitting    how many of all fit, by formula
    fastest    a step of the fastest of all, whether it fits or not
    costs      the costs that priced them, by data sheets
    measured   costs that calibrated these; None: none did
    refused    (call, why it is no point)
    """

    listed: tuple[Listed, ...]
    estimates: Estimates
    fitting: int
    costs: Costs
    fastest: Seconds = 0.0
    points: tuple[int, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    measured: Costs | None = None

    @property
    def plans(self) -> tuple[Plan, ...]:
        """What is to be simulated, best first."""
        return tuple(each.plan for each in self.listed)


def formats_of(graph: Graph, cluster: Cluster, objective: str) -> tuple[Precision, ...]:
    """What points may be rounded to. No bound of memory is known of values in bf16."""
    found = quicker(graph, cluster)
    return tuple(each for each in found if objective != "memory" or each is Precision.TF32)


@without_gc()
def shortlist_of(
    graph: Graph, cluster: Cluster, *, objective: str = "time", allow: str = "exact", tight: bool = False,
    measured: Costs | None = None,
) -> Shortlist:  # fmt: skip
    """The best points of the whole grid by formula, on data-sheet costs, calibrated where some are `measured`: 16 on
    few devices, where the clock is quick, otherwise 2; on few devices also one device, the `usual` plan and the recipes
    that the grid has no column for. Where plans may be lossy, also the best point of each codec, on many devices of two
    codecs, and where TF32 or bf16 are far quicker, the best points in these.

    With `tight`, instead: the best point that may use all of the memory by formula, the best that may use only so much
    of it (SHARES), and so on down to the smallest point.

    Raises PlanError where nothing can be lowered.
    """
    cluster = measured.cluster if measured else cluster
    check_objective(objective, allow, cluster)
    batch = graph.minibatch
    sizes = (1, max(batch // max(cluster.size // 4, 1), 2), batch) if graph.symbolic else (graph.batch,)
    costs = datasheet_costs(graph, cluster, sizes, measured=measured)
    cuts = cuts_of(graph, cluster, costs, min(max(4 * cluster.size, LEAST_STAGES), MOST_STAGES))
    space = space_of(graph, cluster, cuts.most, graph.trained_bytes)
    if not len(space):
        raise none_applies(space.refused)
    found = estimates_of(graph, cluster, slower(costs, sizes[min(1, len(sizes) - 1)]), space, cuts)
    capacity = rooms_of(cluster)[found.devices.astype(np.int64)]
    others: tuple[str, ...] = ()
    if tight:
        kept = tuple(dict.fromkeys(int(ranking(found, cluster, objective, capacity * part)[0]) for part in SHARES))
    else:
        order = ranking(found, cluster, objective, capacity)
        kept = varied(space, order, 16 if cluster.size <= FEW_DEVICES else 2)
        others = _beside(found, costs, capacity, kept, objective, allow)
    listed, refused = list[Listed](), list(space.refused)
    chosen = {space.call(i): (float(found.seconds[i]), float(found.memory[i])) for i in kept}
    beside = {text: (inf, inf) for text in others if text not in chosen}
    for text, by_formula in (chosen | beside).items():
        try:
            plan = call(text, graph, cluster)
            check_lowered(graph, plan, cluster)
        except InputError as error:
            refused.append((text, str(error)))
        else:
            listed.append(Listed(plan, *by_formula))
    return Shortlist(
        tuple(listed), found, int(found.fitting(capacity).sum()), costs, fastest=float(found.seconds.min()),
        points=kept, refused=tuple(refused), measured=measured,
    )  # fmt: skip


def _beside(
    found: Estimates, costs: Costs, capacity: Reals, kept: Sequence[int], objective: str, allow: str
) -> tuple[str, ...]:
    """Calls that are looked at beside the points that are `kept`: recipes that the grid has no column for, and where
    plans may be lossy, the best points with codecs, and those kept in TF32 and bf16."""
    graph, cluster, few = costs.graph, costs.cluster, costs.cluster.size <= FEW_DEVICES
    others = ("single", usual(graph), *other_recipes(allow, least_bucket(graph.trained_bytes))) if few else ()
    if "lossy" not in ALLOWED[allow]:
        return others
    some = [found.space.call(i) for i in kept[: ROUNDED if few else 1]]
    short = (rounded(text, each) for each in formats_of(graph, cluster, objective) for text in some)
    return (*others, *coded(found, costs, capacity, len(SPECS) if few else 2), *short)


def other_recipes(allow: str, least: Bytes = 0) -> tuple[str, ...]:
    """Calls of recipes that the grid has no column for, as far as `allow` lets them be chosen. Buckets are at least
    `least` bytes, the smallest of the grid: with smaller ones, a large model's Program would be too long."""
    codecs = SPECS if "lossy" in ALLOWED[allow] else ()
    own = (*((name, "") for name in OTHER_CLASSES[allow]), *(("ddp", f"codec={name}") for name in codecs))
    return (*grid(OTHER_RECIPES, least), *(_sized(name, words, least) for name, words in own))


def _sized(name: str, words: str, least: Bytes) -> str:
    """A call whose buckets have at least `least` bytes."""
    small = RECIPES[name].knobs.get("bucket_bytes", least) < least
    given = ",".join(filter(None, (words, f"bucket_bytes={least}" if small else "")))
    return f"{name}({given})" if given else name


def ranking(estimates: Estimates, cluster: Cluster, objective: str, capacity: Reals) -> Ints:
    """The points, best first: those that fit `capacity` bytes, a number for each, then those that may fit if the
    formula overrates their memory, then the rest by memory."""
    worth = objective_values(estimates, cluster, objective)
    sure, maybe = estimates.fitting(capacity), estimates.fitting(capacity, SLACK)
    found: list[Ints] = []
    for kind, keys in ((sure, worth), (maybe & ~sure, worth), (~maybe, estimates.memory)):
        left = MOST_RANKED - sum(map(len, found))
        some = np.flatnonzero(kind) if left else np.zeros(0, np.int64)
        if left < len(some):  # with all that are as good as the last one kept
            some = some[keys[some] <= np.partition(keys[some], left - 1)[left - 1]]
        found.append(some[np.lexsort((estimates.memory[some], keys[some]))][:left])
    return np.concatenate(found)


def varied(space: Space, order: Ints, most: int) -> tuple[int, ...]:
    """The first points of a ranking, each of another shape: those that differ in their buckets only would fill the
    list. The last quarter, one at least, is for recipes that are not there yet: what is ranked by may misjudge a method
    as a whole."""
    kept: list[int] = []
    recipes: set[str] = set()
    shapes: set[tuple[int, ...]] = set()
    for i in order.tolist():
        recipe, shape = recipe_of(space.call(i)), tuple(space.shapes[i].tolist())
        room = len(kept) < most - max(most // 4, 1) or recipe not in recipes
        if len(kept) < most and room and shape not in shapes:
            kept.append(i)
            recipes.add(recipe)
            shapes.add(shape)
    return tuple(kept)
