"""What half precision takes: 16 bytes a parameter with Adam, divided as ZeRO divides them, and half the bytes sent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from partita.cluster.cluster import Cluster, Device, Group, Link
from partita.cost.datasheet import datasheet_costs
from partita.cost.memory import memory_curve, resident
from partita.cost.rings import collective_bytes
from partita.graph.graph import Graph
from partita.graph.precision import shortened
from partita.program.instruction import Collective
from partita.program.layout import NORM
from partita.program.program import Program
from partita.program.timeline import PURPOSES
from partita.simulator.simulate import simulate
from tests.cost.test_memory import ADAM
from tests.priced import whole_cores
from tests.programs import program_by
from tests.small import layers

RANKS = 4


def program_of(text: str) -> tuple[Graph, Program]:
    graph, machines = replace(layers(48), global_batch=64, optimizer=ADAM), whole_cores(RANKS, 1e6)
    return graph, program_by(text, graph, machines)


#                          parameters, gradients, masters and moments: bytes a parameter on each of N ranks
STATES = {
    "ddp": (4, 4, 8),
    "ddp(precision=fp32)": (4, 4, 8),
    "ddp(precision=fp16)": (2, 2, 12),
    "ddp(precision=bf16,sums=fp32)": (2, 4, 12),
    "zero1(precision=fp16)": (2, 2, 12 / RANKS),
    "zero2(precision=fp16)": (2, 2 / RANKS, 12 / RANKS),
    "zero3(precision=bf16)": (2 / RANKS, 2 / RANKS, 12 / RANKS),
}


@pytest.mark.parametrize("text", STATES)
def test_states_are_those_of_the_paper(text: str) -> None:
    """ME-11 with ME-01, ME-02, ME-03 (Rajbhandari et al. 2020, figure 1): 2 + 2 + 12 bytes, within 2 %; beside them the
    two numbers from which all ranks of sharded fp16 see whether a gradient overflowed."""
    graph, program = program_of(text)
    held = dict(zip(PURPOSES, resident(program, graph, program.roles[0]).tolist(), strict=True))
    constants = sum(len(c.data) for c in graph.constants)
    norm = 8 * (NORM in program.bucket)
    assert bool(norm) == ("fp16" in text and "zero" in text)
    found = (held["parameters"] - constants, held["buckets"] - norm, held["optimizer"])
    for ours, each in zip(found, STATES[text], strict=True):
        assert ours == pytest.approx(each * graph.parameter_elements, rel=0.02)


@pytest.mark.parametrize(("text", "share"), [("ddp", 0.5), ("zero1", 0.5), ("zero3", 0.5), ("ddp(sums=fp32)", 1.0)])
def test_messages_are_as_short_as_what_they_hold(text: str, share: float) -> None:
    def sent(text: str) -> int:
        _, program = program_of(text)
        acts = program.roles[0].acts(Collective)
        return sum(collective_bytes(program, act, RANKS)[0] for act in acts)

    knobs = text.removesuffix(")") + ("," if "(" in text else "(")
    assert sent(f"{knobs}precision=bf16)") == share * sent(text.split("(")[0])


def test_activations_are_half_and_costs_are_those_of_short_operators() -> None:
    """The device is twice as fast in fp16: so is a step, whose operators are priced by what they make."""
    device = Device(flops=(("fp32", 1e6), ("fp16", 2e6)), memory_bandwidth=1e15)
    machines = Cluster("fast", Group("root", (device,) * RANKS, (Link(1e9, 0.0),) * RANKS))
    graph, plain = program_of("ddp")
    _, short = program_of("ddp(precision=fp16)")
    peaks = []
    for program in (plain, short):
        role = program.roles[0]
        start = np.arange(float(len(role.instructions)))[None]
        curve = memory_curve(program, graph, role, start, start + 1)
        peaks.append(int(curve.parts[:, PURPOSES.index("activations")].max()))
    assert peaks[1] == pytest.approx(peaks[0] / 2, rel=0.1)
    costs = datasheet_costs(graph, machines, (16,), precisions=("float16",))
    seconds = [costs.segment(0, len(g.operators), 16, g) for g in (graph, shortened(graph, "float16"))]
    assert seconds[1] == pytest.approx(seconds[0] / 2, rel=0.1)
    assert simulate(short, costs).step_seconds < 0.7 * simulate(plain, costs).step_seconds
