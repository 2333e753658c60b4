"""What a phase leaves for the next one: weights and the optimizer's state stay on the ranks that have them.

ddp, then local_sgd    each worker goes on with what all have                    carried out
local_sgd, then ddp    each worker's momentum is its own, and ddp's step is one  refused, if the optimizer has any
periods of 2, then 1   each goes on with a momentum of its own: not one step     carried out, and of no exact class
single, then ddp       one rank has been trained, and ddp begins on all          refused
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from partita.errors import LoweringError
from partita.graph.graph import Graph
from partita.lowering.local_updates import steps_alone
from partita.lowering.pairs import pairs_up
from partita.lowering.shared import races
from partita.plan.plan import Plan, agreement_of, waits_for_all
from partita.plan.rule import ruled
from partita.program.instruction import Apply, Update
from partita.program.program import Program

CLASSES: Final = ("exact", "delayed", "lossy", "consensus", "racy")  # each as loose as those before it, or looser


def loosest(classes: Iterable[str]) -> str:
    """The class of training that has been through phases of these."""
    return max(classes, key=CLASSES.index)


def apart_for_good(phases: Sequence[tuple[Plan, Program]]) -> Iterator[Program]:
    """The programs of phases in order. Where workers have stepped alone, and do, the mean of their weights is no longer
    that of one training, however often it is taken, for each has an optimizer's state of its own."""
    before = False
    for plan, program in phases:
        before = before or program.semantics == "consensus"
        yield replace(program, semantics="consensus") if before and _apart(plan) else program


def check_phases(graph: Graph, phases: Sequence[tuple[Plan, Program]]) -> None:
    """Raises LoweringError for two phases of a plan, in order, of which the second does not find where it begins what
    the first one leaves."""
    for (first, before), (second, after) in pairwise(phases):
        for given, why in _gaps(graph, first, before, second, after):
            if given:
                raise LoweringError(
                    f"{phases[-1][0].name} goes on from the phase {first.name} to {second.name}, {why}; this version "
                    "carries nothing from rank to rank between phases, so take phases that agree in the same way on "
                    "the same ranks in buckets of the same size, or go on by a plan of its own with --resume"
                )


def _gaps(graph: Graph, first: Plan, before: Program, second: Plan, after: Program) -> Iterator[tuple[bool, str]]:
    """(whether it is so, what the second phase does not find)."""
    yield _goes_ahead(first) or _goes_ahead(second), "where workers go ahead of each other in one of them"
    yield _layout(before) != _layout(after), "which cuts the parameters differently, or keeps them in another precision"
    left, needed = _models(before), _models(after)
    yield not needed <= left, f"which begins on the ranks {sorted(needed)}, and the weights are on {sorted(left)}"
    yield not _stepped(after) <= _stepped(before), "whose steps are taken on ranks without the optimizer's state"
    stateful = bool(ruled(graph, first.update).optimizer.state)
    apart = _apart(first) and not _apart(second) and len(needed) > 1
    yield stateful and apart, "whose workers step alike, and each comes with an optimizer's state of its own"


def _goes_ahead(plan: Plan) -> bool:
    sync = agreement_of(plan)
    return not waits_for_all(plan) or (plan.mesh.size > 1 and (races(sync) or pairs_up(sync)))


def _apart(plan: Plan) -> bool:
    """Whether its workers step alone."""
    return steps_alone(plan) or (not plan.sync and plan.mesh.length("data") > 1)


def _layout(program: Program) -> list[tuple[object, ...]]:
    return [(b.name, b.dtype, b.pieces, b.shares, b.master) for b in program.trained]


def _models(program: Program) -> set[int]:
    """The ranks that have a model's weights when a phase ends or begins."""
    return {rank for role in program.roles if role.keeps == "model" for rank in role.ranks}


def _stepped(program: Program) -> set[tuple[int, str]]:
    """(rank, bucket) wherever an optimizer steps."""
    steps = [(role, i.act.bucket) for role, i in program.instructions() if isinstance(i.act, Update | Apply)]
    return {(rank, bucket) for role, bucket in steps for rank in role.ranks}
