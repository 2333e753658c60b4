"""Plan -> Program, pass after pass; `verify` judges what comes out.

precision, recomputation  short dtypes, and what backward computes again  -> another step, whose segments are run
samples, or stages        who takes which part of a minibatch or a model  -> roles with Load, F, B
agreement                 none, all-reduces, servers, averages, ...       -> Pack, what moves and adds, Clip, Update
ordering                  which message goes first                        -> lanes that choose
shards                    state divided over those who agree              -> scatters, gathers, Updates of a part
statistics, precision     buffers once a minibatch; masters, scaled loss  -> Settle, Updates of a master
half_sums                 long sums of fp16                               -> Collectives by a ring of our own

Where replicas still differ after the last round, `final_round` makes another Program, which brings them together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from partita.cluster.cluster import Cluster
from partita.graph.graph import Graph
from partita.lowering.agreement import all_reduced, unsynchronised
from partita.lowering.factors import Factors, base_of, factors_of
from partita.lowering.final_round import final_round
from partita.lowering.gaps import refuse
from partita.lowering.half_sums import half_sums
from partita.lowering.local_updates import local_updates, steps_alone
from partita.lowering.ordering import ordered
from partita.lowering.owners import check_servers
from partita.lowering.phases import apart_for_good, check_phases, loosest
from partita.lowering.precision import in_precision, mastered
from partita.lowering.recomputation import with_again
from partita.lowering.samples import Draft, draft, with_factors
from partita.lowering.servers import served
from partita.lowering.shards import sharded, unsliced
from partita.lowering.stages import staged
from partita.lowering.statistics import deferred
from partita.plan.check import check
from partita.plan.memory import Shard
from partita.plan.plan import COMPILED, Plan, alone, waits_for_all
from partita.plan.rule import ruled
from partita.plan.sync import Servers
from partita.program.program import Program
from partita.program.verify import verify


@dataclass(frozen=True, slots=True)
class LoweredPhase:
    """A Program and how many steps of the run it covers (0: all that are left); `end`, if there is one, is the round
    of no minibatch that brings its replicas together after them."""

    steps: int
    program: Program
    plan: Plan
    end: Program | None = None


def lower(graph: Graph, plan: Plan, cluster: Cluster, *, clocked: bool = False) -> tuple[LoweredPhase, ...]:
    """The Programs of the plan's phases, in order; the last one has no end. Whether that one ever finishes is left to
    the event clock where it is `clocked` next.

    Raises PlanError for a plan that contradicts itself, the graph or the cluster, LoweringError for a legal one that
    this version cannot carry out.
    """
    check(plan, graph, cluster)
    phases = [(phase.steps, phase.plan) for phase in plan.before] + [(0, plan)]
    programs = [lower_phase(graph, part, cluster, clocked=clocked and part is plan) for _, part in phases]
    both = [(part, program) for (_, part), program in zip(phases, programs, strict=True)]
    check_phases(graph, both)
    return tuple(
        LoweredPhase(steps, program, part, _at_end(graph, part))
        for (steps, part), program in zip(phases, apart_for_good(both), strict=True)
    )


def last_program(graph: Graph, plan: Plan, cluster: Cluster, *, clocked: bool = False) -> Program:
    """The Program that a run of the plan comes to and stays in: that of its last phase, after those in `plan.before`,
    of the loosest class of all of them, which is the run's.

    Raises what `lower` does, for any of the phases.
    """
    programs = [phase.program for phase in lower(graph, plan, cluster, clocked=clocked)]
    return replace(programs[-1], semantics=loosest(program.semantics for program in programs))


def lower_phase(graph: Graph, plan: Plan, cluster: Cluster, steps: int = 0, *, clocked: bool = False) -> Program:
    """The Program of one phase; with `steps`, of a last round of so few."""
    refuse(graph, plan)
    ruling, factors = ruled(graph, plan.update), factors_of(ruled(graph, plan.update), plan)
    plan = unsliced(base_of(plan))
    step = in_precision(ruling, plan.memory)
    replicated = _replicated(step, plan, cluster, steps, factors)
    program = deferred(step, plan, sharded(replicated, step, plan.memory))
    done = verify(half_sums(mastered(program, ruling, plan.memory), cluster), clocked=clocked)
    return replace(done, update=plan.update, compiled=COMPILED in plan.kernels)


def _replicated(graph: Graph, plan: Plan, cluster: Cluster, steps: int, factors: Factors) -> Program:
    if plan.stages:
        return _staged(graph, plan)
    step = factors.step if factors.layers else with_again(graph, plan)
    program = _agreed(step, plan, cluster, steps, factors)
    return program if step is graph else replace(program, whole=step)


def _staged(graph: Graph, plan: Plan) -> Program:
    """The stages of a plan before any state is divided. The last ones are known to the graph: a search goes on to plans
    that divide theirs in another way."""
    alike, size = replace(plan, name="", memory=replace(plan.memory, shard=Shard.NONE)), graph.minibatch
    kept: tuple[Plan, int, Program] | None = graph.known.get(_staged)
    if kept is None or kept[:2] != (alike, size):
        graph.known[_staged] = kept = alike, size, staged(graph, alike)
    return replace(kept[2], name=plan.name)


def _agreed(graph: Graph, plan: Plan, cluster: Cluster, steps: int, factors: Factors) -> Program:
    if steps_alone(plan):
        return local_updates(draft(graph, plan), cluster, steps)
    agreement = _agreement(plan)
    drawn = draft(graph, plan, cut=agreement in (all_reduced, served), factors=factors, steps=steps)
    program = agreement(drawn)
    check_servers(plan, program)
    return ordered(with_factors(program, drawn), drawn, cluster)


def _agreement(plan: Plan) -> Callable[[Draft], Program]:
    if not plan.sync or (alone(plan) and waits_for_all(plan)):
        return unsynchronised
    return served if isinstance(plan.sync[0].through, Servers) else all_reduced


def _at_end(graph: Graph, plan: Plan) -> Program | None:
    end = None if plan.stages else final_round(draft(ruled(graph, plan.update), base_of(plan)))
    return end and verify(replace(end, update=plan.update))


def check_lowered(graph: Graph, plan: Plan, cluster: Cluster) -> None:
    """Raises, without lowering it if it has one phase, what `lower` raises for a plan."""
    check(plan, graph, cluster)
    refuse(graph, plan)
    if plan.before:
        lower(graph, plan, cluster)
