"""Plans that are not exact beside exact ones, by the time to a loss: a step's seconds, predicted, times the steps that
each takes to it, measured (`steps_of_plans`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.errors import InputError, OptionError
from partita.graph.graph import Graph
from partita.lowering.lower import last_program
from partita.plan.plan import Plan, Update
from partita.searches.candidate import candidate_of
from partita.searches.explaining import MOST_RANKS
from partita.searches.objective import ALLOWED
from partita.searches.ranking import ranked
from partita.searches.search import Search
from partita.searches.steps_of_plans import StepsOfPlans
from partita.simulator.simulate import simulate
from partita.telling import Tell, quiet
from partita.units import show_seconds

HINT: Final = "partita compare TASK --plans ddp,... --target-loss LOSS --write-steps FILE measures and writes them"


@dataclass(frozen=True)
class Learners:
    """Plans that a search may compare with exact ones by the time to the loss `target`, to which an exact one takes
    `steps`; `needs` has how many times as many each takes, by the plan's name. `refused` says why others of the file
    are none."""

    target: float = 0.0
    steps: float = 0.0
    plans: tuple[Plan, ...] = ()
    needs: Mapping[str, float] = field(default_factory=dict)
    refused: tuple[tuple[str, str], ...] = ()


def learners_of(
    known: StepsOfPlans, graph: Graph, cluster: Cluster, allow: str, made: Callable[[str], Plan]
) -> Learners:
    """What `known` says of plans for `graph` on `cluster`; `made` makes the Plan of a call or file.

    Raises OptionError where the steps are another task's or minibatch's, or none of them an exact plan's.
    """
    for name, theirs, mine in (("task", known.task, graph.name), ("minibatch", known.batch, graph.minibatch)):
        if theirs and theirs != mine:
            raise OptionError(f"--steps-to-loss holds the steps of the {name} {theirs}, and it is {mine} here: {HINT}")
    alike, plans = list[float](), dict[Plan, float]()
    refused = [(name, f"its loss was above {known.target:g} after {known.within} steps") for name in known.never]
    for one in known.plans:
        try:
            plan = made(one.plan)
            semantics = last_program(graph, plan, cluster).semantics
        except InputError as error:
            refused.append((one.plan, str(error)))
            continue
        if semantics == "exact" and plan.update == Update():
            alike.append(one.steps)
        elif why := _unfit(plan, semantics, known, cluster, allow):
            refused.append((one.plan, why))
        else:
            plans[plan] = one.steps
    if not alike:
        raise OptionError(
            "--steps-to-loss says of no exact plan how many steps it takes to the loss; add ddp at the task's own rate "
            f"to the plans: {HINT}"
        )
    steps = median(alike)
    return Learners(known.target, steps, tuple(plans), {p.name: k / steps for p, k in plans.items()}, tuple(refused))


def _unfit(plan: Plan, semantics: str, known: StepsOfPlans, cluster: Cluster, allow: str) -> str:
    """Why a plan that was measured is not weighed; empty where it is."""
    if semantics not in ALLOWED[allow]:
        return f"its class is {semantics} and --allow is {allow}"
    if plan.before:
        return "it has phases, whose steps take different times"
    if known.devices and known.devices != cluster.size and semantics != "exact":
        return f"its steps to the loss are known on {known.devices} devices, and there are {cluster.size}"
    return ""


def with_learners(
    found: Search, learners: Learners, graph: Graph, costs: Costs, tell: Tell = quiet
) -> Search:  # fmt: skip
    """The ranking with the `learners` in it, by seconds to the loss, and a line that says what the first takes."""
    more = []
    for plan in learners.plans:
        program = last_program(graph, plan, costs.cluster, clocked=True)
        timeline = simulate(program, costs)
        more.append(candidate_of(plan, program, timeline, costs.cluster, learners.needs[plan.name]))
        tell(f"plans simulated whose steps to the loss were measured: {len(more)}")
    every = (*found.candidates, *more)
    bound = min(found.lower_bound_seconds, *(c.timeline.step_seconds * c.needs for c in every))
    at = (lambda one: None) if costs.cluster.size > MOST_RANKS else None  # the clock would take minutes over bandwidths
    merged = ranked(graph, costs, every, (*found.refused, *learners.refused), found.objective, bound, at)
    best = merged.candidates[0]
    took = learners.steps * best.needs
    words = (
        f"{merged.explanation}\nto a loss of {learners.target:g} {best.plan.name} takes {took:.0f} steps of "
        f"{show_seconds(best.timeline.step_seconds)}, {show_seconds(took * best.timeline.step_seconds)}; exact plans "
        f"take {learners.steps:.0f}"
    )
    fields = {name: getattr(found, name) for name in ("space", "fitting", "pays", "search_seconds")}
    clocked = found.clocked + len(more)
    return replace(merged, explanation=words, clocked=clocked, steps_to_loss=learners.steps, **fields)
