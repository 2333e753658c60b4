"""Half precision as a pass: the step rewritten before it is divided, masters and a scaled loss after all else (ME-11).
In TF32 the step stays as it is, with weights, gradients and messages in fp32: cards round only what they multiply.

bf16   weights short, masters with their owners                 U: gradient widened, a step on the master, rounded
fp16   the same, and C before every U: is what was summed finite, on all ranks alike?   no: no U, half the scale
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import Final

from partita.errors import LoweringError
from partita.graph.graph import Graph
from partita.graph.precision import TF32, shortened, wide_of
from partita.graph.tensor import DTYPE_OF, PRECISION_OF
from partita.lowering.local_updates import steps_alone
from partita.plan.memory import Memory, Precision
from partita.plan.plan import Plan, agreement_of, waits_for_all
from partita.plan.sync import Servers
from partita.program.program import Program
from partita.program.scaling import Scaling
from partita.task import PRECISIONS

SHORT: Final = {precision: DTYPE_OF[precision] for precision in (Precision.BF16, Precision.FP16)}
FORMATS: Final = {**SHORT, Precision.TF32: TF32}  # that a step is rewritten for
START: Final = 2.0**16


def in_precision(graph: Graph, memory: Memory) -> Graph:
    """The step in the plan's precision. Gradients of fp16 are bounded in any case, for that tells whether they are
    finite on every rank."""
    if memory.precision not in SHORT:
        return shortened(graph, TF32) if memory.precision is Precision.TF32 else graph
    bound = inf if memory.precision is Precision.FP16 else 0.0
    return replace(shortened(graph, SHORT[memory.precision]), clip_norm=graph.clip_norm or bound)


def format_asked(memory: Memory) -> str:
    """The short dtype, or TF32, that a plan's memory asks for; "" where it asks for none."""
    return FORMATS.get(memory.precision, "")


def mastered(program: Program, graph: Graph, memory: Memory) -> Program:
    """A Program of such a step, in a half precision with masters of all weights; `graph` is the captured one."""
    if not format_asked(memory):
        return program
    whole = program.whole or (None if program.stages else in_precision(graph, memory))
    if memory.precision not in SHORT:
        alike = program.semantics in ("exact", "delayed")
        return replace(program, whole=whole, semantics="lossy" if alike else program.semantics)
    wide = wide_of(graph)
    sums = wide if memory.sums is Precision.FP32 else ""
    buckets = tuple(replace(b, master=wide, sums=sums) if b.pieces else b for b in program.buckets)
    scaled = memory.precision is Precision.FP16
    scaling = Scaling(memory.loss_scale or START, memory.scale_window) if scaled else None
    return replace(program, buckets=buckets, whole=whole, semantics="lossy", scaling=scaling)


def check_captured(graph: Graph, plan: Plan) -> None:
    """Raises LoweringError where the plan has a precision of its own and the step, not captured, is one operator."""
    if plan.memory.precision is not Precision.TASK and graph.rung == "opaque":
        raise LoweringError(
            f"{plan.name} asks for precision={plan.memory.precision}, and {graph.name} could not be captured: its "
            f"step is one operator that nothing can rewrite; only the task's own precision is allowed: leave out "
            f"precision= and set Task(precision=...), one of {', '.join(PRECISIONS)}"
        )


def check_rounding(graph: Graph, plan: Plan) -> None:
    """Raises LoweringError for a plan in TF32 or fp32 where the task's weights are of another dtype than fp32: what is
    wider is rounded to half precisions only."""
    wide = PRECISION_OF.get(wide_of(graph), "fp32")
    for one in (each.memory.precision for each in (plan, *(phase.plan for phase in plan.before))):
        if wide != "fp32" and one in (Precision.TF32, Precision.FP32):
            raise LoweringError(
                f"{plan.name} asks for precision={one}, and the weights of {graph.name} are {wide}, of which nothing "
                f"makes {one.upper()}; leave out precision=, or set Task(precision='fp32')"
            )


def precision_gaps(graph: Graph, plan: Plan) -> Iterator[tuple[bool, str]]:
    """(whether the plan asks for it, what) of all that has no meaning in short numbers yet."""
    asked = plan.memory.precision is not Precision.TASK
    short = plan.memory.precision in SHORT
    sync = agreement_of(plan)
    yield asked and not wide_of(graph), "a precision of its own for weights that the task keeps short, or in several"
    served = isinstance(sync.through, Servers) or not waits_for_all(plan)
    yield short and served, "half precision with parameter servers"
    apart = steps_alone(plan) or (not plan.sync and plan.mesh.length("data") > 1)
    yield short and apart, "half precision where replicas train apart"
    brief = short or any(p.tensor.dtype in SHORT.values() for p in graph.trainable)
    yield brief and bool(sync.wire.codecs), "half precision with codecs"
