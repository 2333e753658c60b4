"""Long sums of fp16 go by a ring of ours where processors add them up, and nowhere else."""

from __future__ import annotations

import pytest

from partita import api
from partita.lowering.half_sums import LEAST
from partita.lowering.lower import last_program
from partita.program.instruction import Collective
from partita.program.space import Kind


@pytest.mark.parametrize(
    ("plan", "cluster", "algorithm"),
    [
        ("pipe_sgd(codec=fp16)", "lab-4x1g", "ring"),
        ("ddp(codec=fp16,collective=halving)", "lab-4x1g", "halving"),
        ("pipe_sgd(codec=bf16)", "lab-4x1g", "backend"),
        ("pipe_sgd", "lab-4x1g", "backend"),
        ("ddp(codec=fp16,data=8)", "a100-dgx-x16", "backend"),
    ],
)
def test_long_sums_of_fp16_go_by_a_ring(plan: str, cluster: str, algorithm: str) -> None:
    graph, machines = api.graph_of("convnet-8m"), api.cluster_of(cluster)
    program = last_program(graph, api.plan_of(plan, graph, machines), machines)
    acts = program.acts(Collective)
    sums = [act for act in acts if act.kind is Kind.ALL_REDUCE]
    assert {act.algorithm for act in sums if program.payload(act) >= LEAST} == {algorithm}
    short = {act.algorithm for act in sums if program.payload(act) < LEAST}
    assert short <= {"halving" if algorithm == "halving" else "backend"}
