"""Making plans: from a text, or by a search."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from partita.api.checking import (
    check_costs,
    check_counts,
    check_graph,
    check_plans,
    check_steps_to_loss,
    check_task,
    cluster_given,
    name_of,
)
from partita.api.loading import timed_task
from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.cost.measurable import check_named
from partita.cost.unlike import levelled
from partita.errors import InputError
from partita.graph.graph import Graph
from partita.lab.costing import Costing
from partita.lowering.lower import lower
from partita.lowering.precision import check_rounding
from partita.plan.check import check
from partita.plan.plan import Plan, ranks_of
from partita.recipes.budget import settled
from partita.recipes.fastest import candidates
from partita.recipes.reading import read_text
from partita.report.given import check_allow
from partita.report.notebook import ShownSearch, shown_search
from partita.searches.auto import auto
from partita.searches.break_even import all_break_evens, codec_baseline
from partita.searches.finals import finals, plainest
from partita.searches.half_precision import half_precision
from partita.searches.learners import Learners, learners_of, with_learners
from partita.searches.minibatches import over_minibatches
from partita.searches.objective import ALLOWED, check_objective
from partita.searches.search import Search
from partita.searches.shortlist import shortlist_of
from partita.searches.space import usual
from partita.searches.steps_of_plans import StepsOfPlans
from partita.searches.steps_to_loss import StepsToLoss
from partita.task import Task
from partita.telling import Note, Tell, quiet


def plan_of(
    plan: str | Plan, graph: Graph, cluster: Cluster | str, *, task: Task | str = "", allow: str = "exact",
    costs: Costs | None = None, source: str = "", widened: bool = False, tell: Tell = quiet,
) -> Plan:  # fmt: skip
    """The Plan that a recipe call, a plan file (`*.toml`) or `auto`, the best that `search` finds, stands for.

    `recompute=auto` is replaced by the operators that are chosen to be recomputed. Recipes choose stages and
    collectives by `costs` (None: those of data sheets); `auto` measures costs, unless given, if this machine can stand
    for the cluster and workers can load `task`, or as `source` 'measured' or 'datasheet' insists, and tells why it
    takes what it takes. A graph is `widened`
    where it was captured in fp64 whatever the task's precision is.
    """
    check_plans(plan)
    check_graph(graph)
    cluster = levelled(graph, cluster_given(cluster))
    check_costs(costs, graph, cluster)
    check_allow(allow if allow != "exact" else None, name_of(plan))
    check_named(source)
    wanted = plan if isinstance(plan, Plan) else read_text(plan)
    if wanted is None:
        found = search(graph, cluster, task=task, allow=allow, costs=costs, source=source, tell=tell)
        tell(Note(why_auto(found)))
        return found.best
    made = wanted if isinstance(wanted, Plan) else wanted.plan(graph, cluster, costs)
    if not widened:
        check_rounding(graph, made)
    check(made, graph, cluster)
    return settled(made, graph, cluster, costs) if isinstance(wanted, Plan) else made


def search(
    graph: Graph, cluster: Cluster | str, *, task: Task | str = "", costs: Costs | None = None, source: str = "",
    objective: str = "time", top: int = 0, allow: str = "exact",
    steps_to_loss: StepsToLoss | StepsOfPlans | None = None, tell: Tell = quiet,
) -> ShownSearch:  # fmt: skip
    """The best plans of a grid (`searches.space`), best first; `top` keeps so many (0: all).

    A formula on costs of data sheets prices every point of the grid, and the event clock ranks the best. If `costs` are
    not given and this machine can stand for the cluster, workers that load `task` measure how fast its devices and
    links are, by which the grid is priced, and then costs for the best plans, which are ranked again; if it cannot, the
    result's `because` says why. `source` 'measured' or 'datasheet' insists on one of these. The first is the plainest
    of the plans that predictions cannot tell from the best.

    With `steps_to_loss` by minibatch size B, plans of several sizes are compared by the time of K(B) steps; with steps
    to a loss by plan, those that are not exact, as far as `allow` lets them be chosen, by the time of as many as each
    takes.

    Raises PlanError where no plan of the grid applies, OptionError for an objective or class that is not known, or for
    what is given and would do nothing.
    """
    check_graph(graph)
    check_counts(0, top=top)
    cluster = levelled(graph, cluster_given(cluster))
    check_objective(objective, allow, cluster)
    check_steps_to_loss(steps_to_loss, objective)
    check_costs(costs, graph, cluster, source)
    check_task(task or "")
    loaded = task if costs or source == "datasheet" else timed_task(task, cluster)
    if isinstance(steps_to_loss, StepsToLoss):
        given: dict[str, Any] = {"task": loaded, "costs": costs, "top": top, "allow": allow, "tell": tell}
        return shown_search(_of_minibatches(graph, cluster, steps_to_loss, source, given), graph, cluster)
    learners = Learners()
    if steps_to_loss is not None:
        learners = learners_of(steps_to_loss, graph, cluster, allow, lambda text: plan_of(text, graph, cluster))
    begun = time.perf_counter()
    beside = (*(codec_baseline(graph, cluster) if "lossy" in ALLOWED[allow] else ()), *learners.plans)
    with Costing(graph, cluster, task=loaded, source="" if costs else source, tell=tell) as costing:
        contest = _Contest(graph, cluster, objective, allow, beside, costing, costs, tell)
        found, known = contest.finals() if costs is None and source != "datasheet" else contest.screened()
    if learners.steps:
        found = plainest(with_learners(found, learners, graph, known, tell), cluster, objective)
    kept = found.candidates[:top] if top else found.candidates
    if "lossy" in ALLOWED[allow]:
        found = replace(found, pays=all_break_evens(known, tell))
    said = _explanation(found, known, objective)
    found = replace(found, candidates=kept, search_seconds=time.perf_counter() - begun, explanation=said)
    return shown_search(found, graph, cluster)


@dataclass(frozen=True)
class _Contest:
    """The plans of a grid, ranked by the `costs` that are given, or else by what `costing` finds out, which then covers
    the plans `beside` them too."""

    graph: Graph
    cluster: Cluster
    objective: str
    allow: str
    beside: Sequence[Plan]
    costing: Costing
    costs: Costs | None
    tell: Tell

    def screened(self, measured: Costs | None = None) -> tuple[Search, Costs]:
        """All plans by data sheets, calibrated where some costs are `measured`, and by which costs."""
        graph, cluster, objective, allow = self.graph, self.cluster, self.objective, self.allow
        self.tell("pricing every point of the grid by formula")
        shortlist = shortlist_of(graph, cluster, objective=objective, allow=allow, measured=measured)
        known = self.costs or self.costing.by_sheet([*shortlist.plans, *self.beside], measured)
        found = auto(shortlist, known, objective=objective, allow=allow, tell=self.tell)
        return plainest(found, cluster, objective), known

    def measured(self, few: Sequence[Plan]) -> Costs:
        """What a few plans were measured to cost."""
        return self.costing.of([*few, *self.beside], candidates(self.cluster.size) if self.cluster.size > 1 else ())

    def finals(self) -> tuple[Search, Costs]:
        """All plans, the best of them by measured costs, where costs can be measured."""
        return finals(
            _usual(self.graph, self.cluster), self.screened, self.measured,
            objective=self.objective, allow=self.allow, tell=self.tell,
        )  # fmt: skip


def why_auto(found: Search) -> str:
    """Why `auto` takes the plan that it takes, as one sentence."""
    return f"auto: {'; '.join(found.explanation.splitlines())}"


def _explanation(found: Search, known: Costs, objective: str) -> str:
    """What there is to say of a ranking: of the first plans, of devices that it leaves, of half precision, and of
    costs that were not measured."""
    sheet = f"costs are data sheets', not measured: {found.because}" if found.because else ""
    taken, there = ranks_of(found.best), known.cluster.size
    some = f"{found.best.name} takes {taken} of {there} devices" if taken < there else ""
    short = half_precision(found, known) if objective != "time-to-loss" else ""
    return "\n".join(filter(None, (found.explanation, some, short, sheet)))


def _of_minibatches(
    graph: Graph, cluster: Cluster, known: StepsToLoss, source: str, given: dict[str, Any]
) -> Search:  # fmt: skip
    """The search over plans of every minibatch whose steps are `known`; the best few are judged by measured costs."""

    def ranked(by: str) -> Callable[[Graph], Search]:
        return lambda one: search(one, cluster, objective="time-to-loss", source=by, **given)

    if given["costs"] is not None:
        return over_minibatches(graph, known, ranked(""))
    return over_minibatches(graph, known, ranked("datasheet"), ranked(source) if source != "datasheet" else None)


def _usual(graph: Graph, cluster: Cluster) -> Plan:
    """The usual plan, by which devices are timed; that of one device where it does not apply."""
    try:
        lower(graph, made := plan_of(usual(graph), graph, cluster), cluster)
        return made
    except InputError:
        return plan_of("single", graph, cluster)
