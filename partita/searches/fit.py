"""Whether a plan fits the devices' memory, by how much and how surely, and the change that costs least where not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from partita.cluster.cluster import Cluster
from partita.errors import ClusterError, InputError, PlanError
from partita.graph.batch import of_minibatch
from partita.graph.gc_pause import without_gc
from partita.graph.graph import Graph
from partita.graph.precision import wide_of
from partita.lowering.lower import check_lowered
from partita.plan.memory import Precision
from partita.plan.plan import Plan
from partita.recipes.catalogue import call
from partita.searches.footprint import rooms_of
from partita.searches.half_precision import rounded
from partita.searches.memory_bound import MemoryBound, memory_bound_of
from partita.searches.peaks import ERROR, peaks_of
from partita.searches.shortlist import Listed, shortlist_of
from partita.units import Bytes, Seconds, show_bytes

HALVINGS: Final = 2
# Times its memory that a device may need by a formula corrected by what the clock said of the plans before, for a plan
# to be tried, and for the smallest one.
NEAR: Final = 1.0
HOPELESS: Final = 2.0
LARGER: Final = (2, 4, 8)  # times as many devices, where nothing fits


@dataclass(frozen=True)
class Fit:
    """`used` is the peak of each rank, `parts` what it is for on the fullest device, `margin` what is left there (less
    than 0: what is missing) and `error` by how much either may be off; `change` says what to do about it, and `slower`
    how many times as long a step then takes as the fastest plan's would, were memory no matter. Where nothing of what
    there is helps, `bound` says why: what no plan needs less than."""

    plan: Plan
    used: tuple[Bytes, ...]
    parts: dict[str, Bytes] = field(default_factory=dict)
    margin: Bytes = 0
    error: Bytes = 0
    change: str = ""
    slower: float = 0.0
    bound: MemoryBound | None = None

    def __repr__(self) -> str:
        needs = f"needs {show_bytes(max(self.used))} give or take {show_bytes(self.error)}"
        return f"<Fit of {self.plan.name}: {'fits' if self.fits else 'does not fit'}, {needs}>"

    @property
    def fits(self) -> bool:
        """Whether it fits even if the prediction is off by its error."""
        return self.margin >= self.error

    @property
    def unsure(self) -> bool:
        """Whether the prediction's error decides if it fits."""
        return -self.error < self.margin < self.error

    @property
    def needed(self) -> Bytes:
        """What each device would have to hold for the plan to fit."""
        return max(self.used) + self.error


@dataclass(frozen=True)
class Way:
    """The best plans by formula of one way to train, best first with the last one the smallest, and the words that ask
    for it; `fastest` is a step of the fastest plan, were memory no matter."""

    words: str
    graph: Graph
    listed: tuple[Listed, ...]
    fastest: Seconds

    def in_half_precision(self, cluster: Cluster) -> Way:
        """The same plans in bf16, those of them that apply."""
        listed = list[Listed]()
        for each in self.listed:
            with suppress(InputError):
                short = call(rounded(each.plan.name, Precision.BF16), self.graph, cluster)
                check_lowered(self.graph, short, cluster)
                listed.append(replace(each, plan=short))
        return replace(self, listed=tuple(listed))


def fit_of(plan: Plan, graph: Graph, cluster: Cluster) -> Fit:
    """The fit of a plan. Raises ClusterError where a device does not say how much memory it has."""
    if not all(device.memory for device in cluster.devices):
        raise ClusterError(f"{cluster.name} does not say how much memory its devices have; add memory to each device")
    found = peaks_of(plan, graph, cluster)
    left = [device.memory - peak for device, peak in zip(cluster.devices, found.used, strict=False)]
    fullest = left.index(min(left))
    worst = min(device.memory - peak for device, peak in zip(cluster.devices, found.most, strict=False))
    error = max(round(ERROR * found.used[fullest]), left[fullest] - worst)
    return Fit(plan, found.used, found.parts[fullest], left[fullest], error)


@without_gc()
def fit(graph: Graph, cluster: Cluster, plan: Plan | None) -> Fit:
    """The fit of a plan (None: of the fastest one, were memory no matter), and of what to change where it does not:
    among all points of the grid of `auto` the fastest that fits; where none does, with half the minibatch, and so on,
    then in half precision; else how much memory, or how many devices, the smallest plan would need.

    Raises ClusterError as `fit_of` does, PlanError where nothing of the grid applies.
    """
    asked = fit_of(plan, graph, cluster) if plan else None
    if asked and asked.fits:
        return asked
    least: Fit | None = None
    for way in _ways(graph, cluster):
        asked = asked or fit_of(way.listed[0].plan, graph, cluster)
        best, smallest, slower = _fitting(way, cluster, asked)
        if best is not None:
            return replace(asked, change=f"{way.words}use --plan '{best.plan.name}'", slower=slower)
        least = smallest if not way.words and (least is None or smallest.needed < least.needed) else least
    if asked is None or least is None:
        raise PlanError(f"no plan of the grid applies to {graph.name} on {cluster.name}")
    return replace(asked, change=_beyond(least, graph, cluster), bound=memory_bound_of(graph, cluster))


def _ways(graph: Graph, cluster: Cluster) -> Iterator[Way]:
    batch, whole = graph.minibatch, None
    halvings = [n for n in range(HALVINGS + 1) if n == 0 or (graph.symbolic and batch >> n)]
    for halving in halvings:
        smaller = of_minibatch(graph, batch >> halving)
        try:
            found = shortlist_of(smaller, cluster, tight=True)
        except PlanError:
            continue
        words = f"train with a minibatch of {batch >> halving} and " if halving else ""
        if found.listed:
            yield Way(words, smaller, found.listed, found.fastest)
        if not halving:
            whole = Way("compute in half precision and ", graph, found.listed, found.fastest)
    if whole and wide_of(graph) == "float32" and (short := whole.in_half_precision(cluster)).listed:
        yield short


def _fitting(way: Way, cluster: Cluster, asked: Fit | None = None) -> tuple[Fit | None, Fit, float]:
    """The first plan that fits, if any, else the smallest one, and what the former loses by formula. Plans are left out
    that do not fit by a formula as far off as it was for those before; one that was `asked` about is known."""
    rooms, smallest, off = rooms_of(cluster), None, 0.0
    for one in way.listed:
        plan, memory, needs = one.plan, rooms[one.plan.mesh.size], one.memory * off
        if needs > NEAR * memory and (one is not way.listed[-1] or needs > HOPELESS * memory):
            continue
        each = asked if asked and not way.words and asked.plan == plan else fit_of(plan, way.graph, cluster)
        if each.fits:
            return each, each, one.seconds / way.fastest
        off = max(off, max(each.used) / one.memory)
        smallest = min(smallest or each, each, key=lambda one: one.needed)
    assert smallest is not None
    return None, smallest, 0.0


def _beyond(least: Fit, graph: Graph, cluster: Cluster) -> str:
    """How much memory would do, and how many devices like these; not where no switch could take more of them."""
    roomy = cluster.changed(lambda device: replace(device, memory=2 * least.needed))
    enough = fit_of(least.plan, graph, roomy).needed
    words = f"give each device {show_bytes(1.01 * enough)} and use --plan '{least.plan.name}'"
    for times in () if cluster.root.mesh else LARGER:
        root = cluster.root
        larger = replace(cluster, root=replace(root, members=root.members * times, ports=root.ports * times))
        try:
            found = shortlist_of(graph, larger, tight=True)
        except PlanError:
            return words
        best = _fitting(Way("", graph, found.listed, found.fastest), larger)[0] if found.listed else None
        if best is not None:
            return f"{words}, or take {larger.size} such devices and use --plan '{best.plan.name}'"
    return words
