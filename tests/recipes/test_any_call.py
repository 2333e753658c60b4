"""Any recipe with any knobs together is refused in a sentence, or is a plan that is read back, lowered and clocked."""

from __future__ import annotations

from enum import StrEnum
from math import inf
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from partita.cluster.cluster import Cluster
from partita.cost.datasheet import datasheet_costs
from partita.errors import InputError
from partita.graph.graph import Graph
from partita.lowering.lower import last_program
from partita.lowering.samples import sizes_of
from partita.plan.memory import Precision
from partita.plan.plan import COMPILED, Plan
from partita.plan.text import read_plan, write_plan
from partita.program.program import Program
from partita.recipes.catalogue import OURS, call
from partita.simulator.simulate import step_seconds
from tests.small import cluster_of, layers

WORDS = {
    "codec": ("none", "fp16", "q8", "topk", "dgc", "onebit", "powersgd", "q8(where=server)", "topk+q8(where=end)"),
    "collective": ("backend", "auto", "ring", "tree", "hierarchical(2)", "sparse_split", "kylix"),
    "direction": ("push", "pull", "pair"), "graph": ("ring", "torus", "exponential", "complete", "topology"),
    "balance": ("time", "memory", "blocks", "replicas"), "layers": ("all", "'p*'"),
}  # fmt: skip
GRAPH = layers(4)


def values(knob: str, default: Any) -> tuple[Any, ...]:
    """Some values of a knob, of which most make sense."""
    if isinstance(default, StrEnum):
        return tuple(word for word in type(default) if word not in (Precision.FP16, Precision.BF16))
    if isinstance(default, bool):
        return "true", "false"
    if knob in WORDS:
        return WORDS[knob]
    return (0.0, 0.5, 1.0, 2.0) if isinstance(default, float) else (1, 2, 3) if knob[-5:] != "bytes" else (0, 50, 2**20)


@st.composite
def calls(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from([*OURS]))
    knobs = OURS[name].knobs
    chosen = draw(st.lists(st.sampled_from([*knobs]), max_size=4, unique=True))
    return f"{name}({','.join(f'{knob}={draw(st.sampled_from(values(knob, knobs[knob])))}' for knob in chosen)})"


@settings(max_examples=150, deadline=None, derandomize=True)
@given(calls(), st.integers(1, 5))
def test_a_call_is_a_plan_or_is_refused_in_a_sentence(text: str, size: int) -> None:
    graph, machines = GRAPH, cluster_of(size)
    try:
        plan = call(text, graph, machines)
        program = last_program(graph, plan, machines)
    except InputError as refusal:
        said = str(refusal)
    else:
        said = f"{plan.name} has {program.size} ranks"
        _clocked(plan, program, graph, machines)
    assert len(said.splitlines()) == 1


def _clocked(plan: Plan, program: Program, graph: Graph, machines: Cluster) -> None:
    assert read_plan(write_plan(plan)) == plan
    costs = datasheet_costs(graph, machines, sizes_of(plan, graph), compiled=COMPILED in plan.kernels)
    assert 0 < step_seconds(program, costs) < inf
