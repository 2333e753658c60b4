"""Bytes of a ring, bytes of memory, and what is not priced."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.cost.datasheet import datasheet_costs
from partita.cost.demand import demand_of
from partita.cost.memory import peak_memory
from partita.cost.naive import naive
from partita.cost.prices import Prices
from partita.cost.rings import bytes_sent
from partita.cost.touch import Touch
from partita.cost.wiring import ALONE, circle_of
from partita.errors import CostError
from partita.graph.graph import Graph, Optimizer
from partita.program.instruction import Collective, Combine, Decode, Encode, Mix, Pack, Term, Update
from partita.program.program import Program
from partita.program.space import Kind, Space
from tests.priced import batches_of, priced, whole_cores
from tests.programs import program_by
from tests.searches.accelerators import deep
from tests.small import cluster_of, two_layers

PARAMETERS, TANGENT = (4 * 6 + 6 * 2) * 4, 4
ADAM = Optimizer("Adam", (("exp_avg", 1.0, "float32"), ("exp_avg_sq", 1.0, "float32")))


def program_of(graph: Graph, text: str, size: int) -> Program:
    machines = cluster_of(size)
    return program_by(text, graph, machines)


@given(st.integers(1, 10**6), st.sampled_from([1, 2, 4, 8]), st.integers(1, 40))
def test_a_ring_moves_what_it_must(elements: int, item: int, ranks: int) -> None:
    """CO-02: rank i sends 2n - size(c_{i+1}) - size(c_{i+2}), all together 2(p-1)n."""
    sent = bytes_sent(Kind.ALL_REDUCE, elements, item, ranks)
    assert sum(sent) == 2 * (ranks - 1) * elements * item
    chunks = [elements // ranks + (i < elements % ranks) for i in range(ranks)]
    assert sum(chunks) == elements
    if ranks > 1:
        n = 2 * elements
        assert sent == [item * (n - chunks[(i + 1) % ranks] - chunks[(i + 2) % ranks]) for i in range(ranks)]


@pytest.mark.parametrize("servers", [1, 2])
def test_memory_of_workers_and_servers(servers: int) -> None:
    """A worker keeps no optimizer state, a server no activations; a server has an inbox for each worker. Adam's
    denominator is made twice over, of a small bucket at once."""
    graph = replace(two_layers(), optimizer=ADAM, global_batch=64)
    program = program_of(graph, f"ps_sync(servers={servers},bucket_bytes=40)", 2 + servers)
    worker = peak_memory(program, graph, 0)
    owned = [
        sum(
            program.bucket[i.act.bucket].size for i in program.role_of[2 + s].instructions if isinstance(i.act, Combine)
        )
        for s in range(servers)
    ]
    assert sum(owned) == PARAMETERS
    for s, mine in enumerate(owned):
        rule = peak_memory(program, graph, 2 + s) - (PARAMETERS + TANGENT + 2 * mine + mine + 2 * mine)
        stepped = [i.act.bucket for i in program.role_of[2 + s].instructions if isinstance(i.act, Update)]
        assert rule == 2 * max(program.bucket[name].size for name in stepped)
    lone = peak_memory(program_of(graph, "single", 1), graph, 0)
    half = peak_memory(program_of(replace(graph, global_batch=32), "single", 1), graph, 0)
    assert lone > half
    assert worker == half - 2 * PARAMETERS + PARAMETERS


def test_memory_of_pipelining_grows_by_a_slot() -> None:
    graph = two_layers()
    used = [peak_memory(program_of(graph, f"pipe_sgd(staleness={k})", 2), graph, 0) for k in range(4)]
    assert [after - before for before, after in pairwise(used)] == [PARAMETERS] * 3


def test_an_operator_without_a_price_is_named() -> None:
    graph, machines = two_layers(), whole_cores(2, 1e8)
    costs = priced(graph, machines, [4])
    assert costs.segment(0, 10, 4) == pytest.approx(10e-3)
    with pytest.raises(CostError, match=r"aten\.mm.*float32\[3x4\]"):
        costs.segment(0, 1, 3)


def test_copies_are_priced_by_pieces_and_elements() -> None:
    graph, machines = two_layers(), whole_cores(2, 1e8)
    program = program_of(graph, "ddp", 2)
    costs = priced(graph, machines, [4], copy=Touch(1.0, 0.125))
    pack, *_ = program.acts(Pack)
    assert demand_of(costs, program, pack).core == 2 * 1.0 + 36 * 0.125
    assert demand_of(costs, program, Combine("b0", (0, 1))).core == 2 * (2 * 1.0 + 36 * 0.125)


def test_a_mix_passes_once_for_each_term_but_its_own() -> None:
    graph, machines = two_layers(), whole_cores(2, 1e8)
    costs, program = priced(graph, machines, [4], copy=Touch(1.0, 0.125)), program_of(graph, "ddp", 2)
    weights, far = Term(Space.PARAMETER), Term(Space.INBOX, (0.5, 0.25), (1, 0))
    moved = replace(weights, factor=(0.5,))
    for terms, passes in {(weights, far): 1, (moved, far): 2, (far,): 1, (moved,): 1, (weights,): 0}.items():
        mixed = Mix("b0", Space.PARAMETER, terms)
        assert demand_of(costs, program, mixed).core == passes * (1.0 + 36 * 0.125), terms


@pytest.mark.parametrize("size", [2, 3])
def test_the_naive_guess_is_computing_and_bytes(size: int) -> None:
    graph, bandwidth = two_layers(), 1e3
    machines = whole_cores(size, bandwidth)
    program = program_of(graph, "ddp", size)
    costs = priced(graph, machines, batches_of(program))
    slowest = max(bytes_sent(Kind.ALL_REDUCE, 36, 4, size)) / bandwidth
    found = naive(program, costs)
    assert found["sum"] == pytest.approx(10e-3 + slowest)
    assert found["max"] == pytest.approx(max(10e-3, slowest))
    roomy = replace(machines.root, members=tuple(replace(one, cores=4.0) for one in machines.root.members))
    assert naive(program, replace(costs, cluster=replace(machines, root=roomy))) == found  # one thread computes


@pytest.mark.parametrize(
    "text",
    [
        "zero_bubble(stages=2,data=2,microbatches=2,bucket_bytes=96,shard=gradients,recompute=full)",
        "interleaved(stages=2,chunks=2,data=2,microbatches=2,shard=parameters)",
        "ps_sync(bucket_bytes=96,servers=2)",
        "ddp(bucket_bytes=96,codec=fp16)",
    ],
)
def test_what_is_priced_once_costs_what_each_does(text: str) -> None:
    """Of acts that differ in their microbatch, in whom they go to, or in nothing."""
    graph, machines = deep(16), cluster_of(4)
    program, costs = program_of(graph, text, 4), datasheet_costs(graph, machines, (1, 2, 4, 8, 16))
    prices = Prices(costs, program)
    for _, i in program.instructions():
        among = circle_of(i.act.groups[0], machines) if isinstance(i.act, Collective) else ALONE
        assert prices.of(i.act) == demand_of(costs, program, i.act, among)
    assert len(prices.known) < program.length


@pytest.mark.parametrize(("plan", "name", "calls"), [
    ("ddp(codec=powersgd)", "powersgd", (2, 2)), ("ddp(codec=onebit)", "onebit", (1, 1)),
    ("zero2(codec=onebit)", "onebit", (4, 1)),
])  # fmt: skip
def test_a_codec_costs_a_call_for_each_matrix_or_part(plan: str, name: str, calls: tuple[int, int]) -> None:
    """Of two matrices in a bucket PowerSGD factors each; where four ranks own parts, each part is encoded by itself."""
    graph, cluster = two_layers(64), whole_cores(4, 1e9)
    program = program_by(plan, graph, cluster)
    codecs = {name: (Touch(1.0, 0.0), Touch(1.0, 0.0))}
    costs = replace(priced(graph, cluster, [2]), codecs=codecs)
    acts = [i.act for i in program.roles[0].instructions]
    ahead = {demand_of(costs, program, act).core for act in acts if isinstance(act, Encode)}
    back = {demand_of(costs, program, act).core / max(len(act.sources), 1) for act in acts if isinstance(act, Decode)}
    assert (ahead, back) == ({float(calls[0])}, {float(calls[1])})
