"""Deferred batch statistics: those of a minibatch's microbatches enter the running ones together, once (DP-36;
torchgpipe's DeferredBatchNorm, Kim et al. 2020). So do buffers that follow from no sample, as counters of steps do: all
microbatches read what the minibatch began with, and it moves once.

compute   F#0 F#1 F#2 F#3 V  B#3 ...        V after the last forward pass of a minibatch through a stage
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from partita.graph.graph import Graph
from partita.graph.statistics import sample_free, statistics_of
from partita.plan.plan import DEFERRED, Plan
from partita.program.instruction import After, Compute, Instruction, Settle
from partita.program.program import Program, Role


def deferred(graph: Graph, plan: Plan, program: Program) -> Program:
    """The Program with its batch statistics deferred, where the plan asks for that, and what follows from no sample,
    where minibatches have several microbatches."""
    kept = statistics_of(graph) if DEFERRED in plan.kernels else ()
    names = tuple(buffer for statistic in kept for buffer in statistic.buffers)
    names += sample_free(graph) if any(map(_repeats, program.roles)) else ()
    if not names:
        return program
    roles = tuple(_settling(graph, program, role, names) for role in program.roles)
    return replace(program, roles=roles, deferred=names)


def statistics_gaps(graph: Graph, plan: Plan) -> Iterator[tuple[bool, str]]:
    """(whether the plan asks for it, what) of statistics that nothing can tell from what else a step changes."""
    asked = DEFERRED in plan.kernels and plan.schedule.microbatches > 1
    hidden = graph.rung == "opaque" and bool(graph.mutations)
    yield asked and hidden, "deferred batch statistics of a step that was captured as one operator"


def _repeats(role: Role) -> bool:
    """Whether several microbatches of one minibatch go through a segment."""
    passes = [(act.segment, act.step) for act in role.acts(Compute)]
    return len(set(passes)) < len(passes)


def _settling(graph: Graph, program: Program, role: Role, names: tuple[str, ...]) -> Role:
    """The role with a Settle after the last forward pass of each minibatch through each stage that has any."""
    last: dict[tuple[int, int], str] = {}
    for instruction in role.instructions:
        act = instruction.act
        if isinstance(act, Compute):
            segment = program.segment[act.segment]
            stage = program.graph_of(segment.stage, graph)
            if segment.start < stage.forward_length and any(buffer in names for buffer, _ in stage.mutations):
                last[segment.stage, act.step] = instruction.name
    after = {name: place for place, name in last.items()}
    body: list[Instruction] = []
    for instruction in role.instructions:
        body.append(instruction)
        if instruction.name in after:
            stage_number, step = after[instruction.name]
            name = f"V{stage_number if stage_number >= 0 else ''}" + (f".{step}" if step else "")
            body.append(Instruction(name, Settle(stage_number), instruction.lane, (After(instruction.name),)))
    return replace(role, instructions=tuple(body))
