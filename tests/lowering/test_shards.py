"""Shares of buckets, for any sizes and any ranks: bytes, order, what is there at once."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.cost.rings import collective_bytes
from partita.graph.graph import Graph
from partita.lowering.lower import last_program
from partita.plan.memory import Memory, Shard
from partita.plan.mesh import Mesh
from partita.plan.plan import Plan
from partita.plan.schedule import Schedule
from partita.plan.sync import Sync
from partita.plan.wire import Wire
from partita.program.instruction import Collective, Compute, Free, Pack
from partita.program.program import Program
from partita.program.space import Kind, Space
from tests.programs import program_by
from tests.small import cluster_of, layers, tied

SHARDS = (Shard.OPTIMIZER, Shard.GRADIENTS, Shard.PARAMETERS)
SIZE = (2 * 3 + 3 * 4 + 6 * 16) * 4


def program_of(graph: Graph, size: int, bucket: int, memory: Memory, microbatches: int = 1) -> Program:
    wire = Wire(bucket_bytes=bucket, first_bucket_bytes=bucket, slice_bytes=50)
    plan = Plan("z", Mesh((("data", size),)), schedule=Schedule(microbatches=microbatches), sync=(Sync(wire=wire),))
    return last_program(graph, replace(plan, memory=memory), cluster_of(size))


def sent(program: Program, size: int) -> int:
    acts = program.roles[0].acts(Collective)
    return sum(sum(collective_bytes(program, act, size)) for act in acts)


def gathering(shard: Shard, ahead: int, keep: int) -> Memory:
    """Weights are gathered where they are divided."""
    return Memory(shard, ahead=ahead, keep=keep) if shard is Shard.PARAMETERS else Memory(shard)


programs = st.builds(
    lambda shard, size, bucket, ahead, keep, m: (
        program_of(layers(6, 24), size, bucket, gathering(shard, ahead, keep), m), size, shard, keep, m,
    ),
    st.sampled_from(SHARDS), st.integers(2, 6), st.integers(0, 500), st.integers(1, 4), st.sampled_from([0, 1, 3, 99]),
    st.integers(1, 3),
)  # fmt: skip


@settings(max_examples=60)
@given(programs)
def test_shares_cover_every_bucket_and_bytes_are_the_papers(
    given_: tuple[Program, int, Shard, int, int],
) -> None:
    """ME-01, ME-02, ME-03: with one microbatch 2(N-1), 2(N-1), 3(N-1) of all bytes over N ranks; kept weights fewer.
    That it lowers at all says that no order of the lanes gets stuck."""
    program, size, shard, keep, m = given_
    for bucket in program.trained:
        assert bucket.shares
        parts = [b - a for a, b in pairwise(bucket.shares.edges)]
        assert len(parts) == size
        assert sum(parts) == bucket.elements
        assert max(parts) - min(parts) <= 1
    scatters = 1 if shard is Shard.OPTIMIZER else m
    gathers = 2 * m if shard is Shard.PARAMETERS else 1
    total, each = sent(program, size), (size - 1) * SIZE
    most = (scatters + gathers) * each
    assert total == most or (keep and shard is Shard.PARAMETERS and (scatters + 1) * each <= total < most)


@settings(max_examples=40)
@given(programs)
def test_weights_are_there_when_they_are_read(given_: tuple[Program, int, Shard, int, int]) -> None:
    """Along the compute lane, with gathers as far ahead as they may go: each is closed when it is opened, and open
    while a segment waits for it."""
    program, _, shard, _, _ = given_
    if shard is not Shard.PARAMETERS:
        return
    role, opened = program.roles[0], set[str]()
    gathers = {i.name: i.act.bucket for i in role.instructions if isinstance(i.act, Collective)}
    for one in role.on("compute"):
        if isinstance(one.act, Compute):
            come = {gathers[after.name] for after in one.after if after.name in gathers}
            assert not come & opened
            opened |= come
        elif isinstance(one.act, Free):
            opened.remove(one.act.bucket)
    assert not opened


@settings(max_examples=40)
@given(programs)
def test_two_packed_buckets_are_there_at_most(given_: tuple[Program, int, Shard, int, int]) -> None:
    """ME-02: the third Pack waits until the first one's sum has been scattered and given back."""
    program, _, shard, _, _ = given_
    role = program.roles[0]
    packs = [i for i in role.on("compute") if isinstance(i.act, Pack)]
    if shard is Shard.OPTIMIZER:
        assert not role.acts(Free)
        return
    for early, late in zip(packs, packs[2:], strict=False):
        assert f"K{early.name[1:]}" in [after.name for after in late.after if not after.rounds]


@pytest.mark.parametrize("ahead", [1, 2])
def test_gathers_go_so_many_uses_ahead(ahead: int) -> None:
    """While a use goes on, `ahead` more of them have been asked for, and no more: each as soon as that use may begin
    and what the bucket had before is given back."""
    program = program_of(layers(6, 24), 3, 0, Memory(Shard.PARAMETERS, ahead=ahead))
    role = program.roles[0]
    line = {i.name: n for n, i in enumerate(role.on("compute"))}
    first = {a.name: n for n, i in enumerate(role.on("compute")) for a in i.after if a.name[0] == "G"}
    gathers = [
        (i, i.act.bucket) for i in role.on("wire") if isinstance(i.act, Collective) and i.act.kind is Kind.ALL_GATHER
    ]
    frees = [(i.name, i.act.bucket) for i in role.on("compute") if isinstance(i.act, Free)]
    gathers.sort(key=lambda one: first[one[0].name])
    given_back = {b.name: [name for name, bucket in frees if bucket == b.name] for b in program.trained}
    for (before, _), (late, bucket) in zip(gathers, gathers[ahead:], strict=False):
        asked = max((line[a.name] for a in late.after if a.name in line and not a.rounds), default=-1)
        freed = [line[a.name] for a in late.after if a.name in given_back[bucket] and not a.rounds]
        assert asked == max([first[before.name] - 1, *freed]) < first[late.name]


def test_rules_that_mix_elements_get_whole_buckets() -> None:
    """EX-06: spread over the owners by size."""
    graph = layers(6, 24)
    mixed = replace(graph, optimizer=replace(graph.optimizer, elementwise=False))
    program = program_of(mixed, 3, 0, Memory(Shard.GRADIENTS))
    owners: dict[int, int] = {}
    for bucket in program.trained:
        assert bucket.shares
        parts = [b - a for a, b in pairwise(bucket.shares.edges)]
        assert sorted(parts) == [0, 0, bucket.elements]
        owners[parts.index(bucket.elements)] = owners.get(parts.index(bucket.elements), 0) + bucket.elements
    assert max(owners.values()) - min(owners.values()) <= 16


def test_what_is_kept_whole() -> None:
    machines, graph = cluster_of(4), layers(6)
    for text, whole in (
        ("zero1", (Space.PARAMETER, Space.GRADIENT)), ("zero2", (Space.PARAMETER,)), ("zero3", ()),
        ("ddp(shard=parameters)", ()),
    ):  # fmt: skip
        program = program_by(text, graph, machines)
        assert {b.shares and b.shares.whole for b in program.trained} == {whole}
    assert all(b.shares is None for b in program_by("ddp", graph, machines).trained)


@pytest.mark.parametrize("clip_norm", [0.0, 1.0])
@pytest.mark.parametrize("shard", ["optimizer", "gradients", "parameters"])
@pytest.mark.parametrize(
    "call", ["one_f_one_b(stages=4", "interleaved(stages=3,chunks=2", "interleaved(stages=2,chunks=4"]
)
@pytest.mark.parametrize("data", [1, 2])
def test_all_holders_come_to_tied_weights_in_one_order(call: str, shard: str, clip_norm: float, data: int) -> None:
    """However their own stages lie: that it lowers says that none waits for another for ever."""
    graph = replace(tied(tied(tied(layers(8, 48), 0, 5), 1, 4), 2, 7), clip_norm=clip_norm)
    text = f"{call},data={data},microbatches=6,shard={shard},bucket_bytes=16)"
    program = program_by(text, graph, cluster_of(4 * data if call[0] == "o" else 3 * data if "3" in call else 2 * data))
    wires = [[i.act.bucket for i in role.on("wire") if isinstance(i.act, Collective)] for role in program.roles]
    for one, other in combinations(wires, 2):
        both = set(one) & set(other)
        assert [name for name in one if name in both] == [name for name in other if name in both]
