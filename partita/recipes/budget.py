"""What `recompute=auto` recomputes: as little as possible while every rank keeps to the memory budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.cost.memory import peak_memory, resident
from partita.errors import PlanError
from partita.graph.blocks import block_starts
from partita.graph.graph import Graph
from partita.graph.recompute_rules import cheap, whole_blocks
from partita.lowering.lower import lower_phase
from partita.lowering.precision import in_precision
from partita.plan.check import check
from partita.plan.memory import Recompute
from partita.plan.plan import Plan
from partita.program.instruction import Compute
from partita.program.program import Program, Role
from partita.recipes.balance import prices_near
from partita.recipes.trade import Trade
from partita.units import Bytes, Seconds, show_bytes

FINE = 32  # forward operators up to which each is also tried as a block of its own
TRIES = 6  # limits that are tried for each size of blocks
TRIMS = 24  # operators that are then tried without


@dataclass
class _Place:
    """The ranks that run the same stages: the trade-off of each stage, the bytes allowed, and the best choice so
    far."""

    trades: dict[int, Trade]
    allowed: Bytes
    held: Bytes = 0
    now: frozenset[str] = frozenset()
    best: tuple[Seconds, frozenset[str]] | None = None
    limit: float = 0.0
    low: float = 0.0
    high: float = 0.0
    least: list[Bytes] = field(default_factory=list)

    def turn(self) -> None:
        """Choose for the limit half way between the largest that is too tight and the smallest that is too loose."""
        self.limit = (self.low + self.high) / 2
        found = [trade.best(self.limit) for trade in self.trades.values()]
        self.now = frozenset(name for one in found if one for name in one)
        if any(one is None for one in found):
            self.low, self.now = self.limit, frozenset()
        elif not self.now:  # all is kept, which is known not to fit
            self.high = self.limit

    def judge(self, peak: Bytes) -> None:
        """Keep the current choice if it fits and costs least, and go on to a looser or tighter limit."""
        if not self.now:
            return
        self.least.append(peak)
        if peak > self.allowed:
            self.high = self.limit
            return
        self.low = max(self.low, self.limit)
        seconds = next(iter(self.trades.values())).seconds
        cost = sum(seconds[name] for name in self.now)
        if self.best is None or cost < self.best[0]:
            self.best = cost, self.now


def settled(plan: Plan, graph: Graph, cluster: Cluster, costs: Costs | None = None) -> Plan:
    """The plan with the operators that `recompute=auto` stands for under its budget, also in the phases before it; by
    measured costs, or without `costs` by data sheets.

    Raises PlanError if no choice keeps to the budget; it says what the least is that was found.
    """
    before = tuple(replace(phase, plan=settled(phase.plan, graph, cluster, costs)) for phase in plan.before)
    plan = replace(plan, before=before)
    if plan.memory.recompute is not Recompute.AUTO or plan.memory.recomputed:
        return plan
    check(plan, graph, cluster)
    program = lower_phase(graph, plan, cluster)
    roles = [role for role in program.roles if program.stages_of(role)]
    now = {role.name: passing(program, graph, role.ranks[0]) for role in roles}
    limits = {role.name: _allowed(plan, program, role, graph, cluster, max(now.values())) for role in roles}
    over_budget = {program.stages_of(r) for r in roles if now[r.name] > limits[r.name]}
    if not over_budget:
        return plan
    step = in_precision(graph, plan.memory)
    short: list[_Place] = []

    def kept(blocks: Sequence[int]) -> tuple[Seconds, Plan] | None:
        """What is computed again by the programme of these blocks; None if one place cannot keep to its budget."""
        places = _places(program, (graph, step), cluster, costs, blocks, limits, over_budget)
        for stages, place in places.items():
            place.held = max(now[role.name] for role in roles if program.stages_of(role) == stages)
        names = _searched(plan, graph, cluster, places, blocks)
        if names is None:
            short.append(next(place for place in places.values() if place.best is None))
            return None
        prices = next(iter(next(iter(places.values())).trades.values())).seconds
        made = _trimmed(plan, graph, cluster, names, limits, prices)
        return sum(prices[name] for name in made.memory.recomputed), made

    found: list[tuple[Seconds, Plan] | None] = []
    for blocks in (block_starts(step), *([tuple(range(step.forward_length))] if step.forward_length <= FINE else [])):
        found.append(kept(blocks))
        while found[-1] is None and len(blocks) >= 3:
            blocks = (0, *blocks[2::2])
            found.append(kept(blocks))
    if fitting := [one for one in found if one]:
        return min(fitting, key=lambda one: one[0])[1]
    last = short[-1]
    least = min((peak for place in short if place.allowed == last.allowed for peak in place.least), default=last.held)
    raise PlanError(
        f"{plan.name}: recompute=auto may take {show_bytes(last.allowed)} for what comes and goes in a step, "
        f"and found no way below {show_bytes(least)}; raise budget, or use more microbatches or stages"
    )


def _searched(
    plan: Plan, graph: Graph, cluster: Cluster, places: Mapping[tuple[int, ...], _Place], blocks: Sequence[int]
) -> frozenset[str] | None:
    """The operators that every place recomputes: at first those of the rules, then by bisection over each place's
    limit; None if one place cannot keep to its budget."""

    def judged() -> None:
        names = frozenset(name for place in places.values() for name in place.now)
        if not names:
            return
        made = lower_phase(graph, _with(plan, names), cluster)
        for stages, place in places.items():
            ranks = [role.ranks[0] for role in made.roles if made.stages_of(role) == stages]
            place.judge(max(passing(made, graph, rank) for rank in ranks))

    step = in_precision(graph, plan.memory)
    for rule in (
        cheap(step, blocks),
        whole_blocks(step, blocks, last=bool(plan.stages)),
        whole_blocks(step, blocks),
    ):
        for place in places.values():
            place.now = frozenset(name for trade in place.trades.values() for name in trade.own & rule)
            place.low, place.high = 0.0, 2.0 * place.held
        judged()
    for place in places.values():
        place.low, place.high = 0.0, 2.0 * place.held
    for _ in range(TRIES):
        for place in places.values():
            place.turn()
        judged()
    found = [place.best for place in places.values()]
    return None if None in found else frozenset(name for one in found if one for name in one[1])


def _trimmed(
    plan: Plan,
    graph: Graph,
    cluster: Cluster,
    names: frozenset[str],
    limits: Mapping[str, Bytes],
    prices: Mapping[str, Seconds],
) -> Plan:
    """The plan with these names, without those, most expensive first, that can be left out while every rank keeps to
    its limit: a programme over bounds may choose too many."""
    kept = _with(plan, names)
    for name in sorted(names, key=lambda name: (-prices[name], name))[:TRIMS]:
        tried = _with(plan, frozenset(kept.memory.recomputed) - {name})
        if tried.memory.recomputed:
            program = lower_phase(graph, tried, cluster)
            roles = (role for role in program.roles if role.name in limits)
            if all(passing(program, graph, role.ranks[0]) <= limits[role.name] for role in roles):
                kept = tried
    return kept


def _with(plan: Plan, names: frozenset[str]) -> Plan:
    return replace(plan, memory=replace(plan.memory, recomputed=tuple(sorted(names))))


def passing(program: Program, graph: Graph, rank: int) -> Bytes:
    """The most bytes that a rank holds besides resident ones: activations, gradients, messages, workspace."""
    return peak_memory(program, graph, rank) - int(resident(program, graph, program.role_of[rank]).sum())


def _allowed(plan: Plan, program: Program, role: Role, graph: Graph, cluster: Cluster, most: Bytes) -> Bytes:
    """Bytes that a role's ranks may hold besides resident ones, if the rank with the most would hold `most` without
    recomputation."""
    budget = plan.memory.budget
    if budget:
        return int(budget if budget > 1 else budget * most)
    memory = min(cluster.devices[rank].memory for rank in role.ranks)
    if not memory:
        raise PlanError(
            f"{plan.name}: recompute=auto needs a budget, for {cluster.name} does not say how much memory its devices "
            "have; give budget=0.5 for half of what keeping everything takes, or bytes"
        )
    return memory - int(resident(program, graph, role).sum())


def _places(
    program: Program, graphs: tuple[Graph, Graph], cluster: Cluster, costs: Costs | None, blocks: Sequence[int],
    limits: Mapping[str, Bytes], over_budget: set[tuple[int, ...]],
) -> dict[tuple[int, ...], _Place]:  # fmt: skip
    """`graphs` are the captured step and the one in the plan's precision."""
    graph, whole = graphs
    number = {o.name: sum(start <= i for start in blocks) - 1 for i, o in enumerate(whole.operators)}
    count = max(segment.batch for segment in program.segments)
    prices = prices_near(graph, cluster, costs, count, whole.precision)
    found: dict[tuple[int, ...], _Place] = {}
    for stages in dict.fromkeys(map(program.stages_of, program.roles)):
        if stages not in over_budget:
            continue
        alike, trades = [one for one in program.roles if program.stages_of(one) == stages], {}
        for stage in stages:
            step = program.graph_of(stage, graph)
            block = [number[o.name.split("@")[0]] for o in step.operators[: step.forward_length]]
            flying = max(_in_flight(program, graph, one, stage) for one in alike)  # replicas may differ by one
            trades[stage] = Trade(step, prices, block, count, flying)
        allowed = min(limits[one.name] for one in alike)
        found[stages] = _Place(trades, allowed)
    return found


def _in_flight(program: Program, graph: Graph, role: Role, stage: int) -> int:
    """The most microbatches between the beginning of forward and the end of backward of a stage."""
    flying = most = 0
    end = len(program.graph_of(stage, graph).operators)
    for act in role.acts(Compute):
        segment = program.segment[act.segment]
        if segment.stage == stage:
            flying += segment.start == 0
            most = max(most, flying)
            flying -= segment.stop == end
    return max(most, 1)
