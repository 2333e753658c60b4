"""Sums of chosen entries between ranks: the dense sum, the same bits everywhere, and no more bytes than are said."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch

from partita.errors import PlanError
from partita.lowering.lower import last_program, lower
from partita.plan.text import read_plan, write_plan
from partita.program.instruction import Collective
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runtime.workload import Workload
from partita.searches.break_even import without_codecs
from partita.tracing.capture import capture
from partita.transport.streams import KeptMaps, by_streams
from partita.wire.algorithms import BACKEND, all_reduce
from partita.wire.interpreter import carried_out
from partita.wire.schedule import Hop, even_edges
from partita.wire.streams import HEAD, PLACE, Stream, packed, stream_of
from tests.small import cluster_of, perceptron, two_layers
from tests.threads import each_in_a_thread
from tests.transport.test_ring import Post, Posting
from tests.wire.sending import hops_of

NAMES = ("sparse_doubling", "sparse_split", "sparse_split_dense", "kylix")


def chosen(group: tuple[int, ...], elements: int, entries: int, scale: float = 1.0) -> dict[int, torch.Tensor]:
    """A vector of each rank with so many entries, always at the same places."""
    found = {}
    for rank in group:
        draw = torch.Generator().manual_seed(rank)
        vector = torch.zeros(elements)
        vector[torch.randperm(elements, generator=draw)[:entries]] = torch.randn(entries, generator=draw) * scale
        found[rank] = vector
    return found


def summed(name: str, flats: dict[int, torch.Tensor], maps: dict[int, KeptMaps], round: int = 0) -> Post:
    """Sums the vectors in place among threads, and says what they sent."""
    group, post = tuple(flats), Post()
    schedule = all_reduce(name, len(group))

    def run(rank: int) -> None:
        for pending in by_streams(Posting(rank, post), schedule, flats[rank], group, "A", round, maps[rank]):
            pending.block(5.0)

    each_in_a_thread(group, run)
    return post


def on_paper(name: str, flats: dict[int, torch.Tensor]) -> dict[int, int]:
    """Bytes that each rank sends by the interpreter of schedules, heads and bodies, with all places."""
    schedule, group = all_reduce(name, len(flats)), tuple(flats)
    assert schedule.sparse is not None
    sparse, sent = schedule.sparse, dict.fromkeys(group, 0)
    vectors = [flats[rank].numpy().copy() for rank in group]
    edges = even_edges(len(vectors[0]), schedule.parts)

    def note(step: int, hop: Hop, streams: Sequence[Stream]) -> None:
        head, body = packed(streams)
        whole = sparse.whole and not hop.add
        sent[group[hop.source]] += sum(4 * one.length for one in streams) if whole else head.nbytes + len(body)

    carried_out(schedule, [[stream_of(v[a:b]) for a, b in pairwise(edges)] for v in vectors], note=note)
    return sent


@pytest.mark.parametrize("group", [(0, 1), (1, 4, 5), (0, 1, 2, 3), tuple(range(8))])
@pytest.mark.parametrize("name", NAMES)
def test_ranks_end_with_the_dense_sum(name: str, group: tuple[int, ...]) -> None:
    """CO-09: for supports from none to all; one set of bits; the bytes that are sent are the interpreter's."""
    for entries in (0, 3, 50, 100, 200):
        flats = chosen(group, 200, entries)
        total, sent = sum(flats.values(), torch.zeros(200)), on_paper(name, flats)
        post = summed(name, flats, {rank: {} for rank in group})
        assert torch.allclose(flats[group[0]], total, rtol=0, atol=1e-5)
        assert len({flat.numpy().tobytes() for flat in flats.values()}) == 1
        assert {rank: post.sent[rank] for rank in group} == sent


def test_places_that_both_ends_know_are_not_sent() -> None:
    """CO-08: in the second round there are heads and values alone, and the sum is right."""
    group, maps = tuple(range(4)), {rank: KeptMaps() for rank in range(4)}
    first = summed("kylix(2,2)", chosen(group, 400, 12), maps).sent
    again = chosen(group, 400, 12, scale=5.0)
    total = sum(again.values(), torch.zeros(400))
    second = summed("kylix(2,2)", again, maps, 1).sent
    heads = dict.fromkeys(group, 0)
    for hop in hops_of(all_reduce("kylix(2,2)", 4)):
        heads[hop.source] += HEAD * (hop.stop - hop.start)
    assert {r: (first[r] - heads[r]) * 4 for r in group} == {r: (second[r] - heads[r]) * (PLACE + 4) for r in group}
    assert torch.allclose(again[0], total, atol=1e-5)
    other = chosen(tuple(range(4, 8)), 400, 12)
    total = sum(other.values(), torch.zeros(400))
    moved = dict(zip(group, other.values(), strict=True))
    assert summed("kylix(2,2)", moved, maps, 2).sent[0] > second[0]
    assert torch.allclose(moved[0], total, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_replicas_stay_alike_to_the_bit_in_any_order_of_events(name: str) -> None:
    """Of all workers, also where their lanes take other turns; and they are those of codings that are gathered."""
    machines, task = cluster_of(4), perceptron()
    graph = capture(task)
    ends, sparse = list[dict[str, torch.Tensor]](), f"ddp(codec=topk(ratio=0.1),collective={name})"
    for text, order in ((sparse, 1), (sparse, 2), ("ddp(codec=topk(ratio=0.1))", 0)):
        states, _ = train_in_process(Workload(task, graph), call(text, graph, machines), machines, 4, order=order)
        rows = [{k: v for k, v in states[rank].leaves.items() if v.is_floating_point()} for rank in range(4)]
        assert all(torch.equal(row[k], rows[0][k]) for row in rows for k in row)
        ends.append(rows[0])
    assert all(torch.equal(ends[0][k], ends[1][k]) for k in ends[0])
    assert all(torch.allclose(ends[0][k], ends[2][k], atol=1e-5) for k in ends[0])


@pytest.mark.parametrize("name", [*NAMES, "kylix(2,2)"])
def test_it_is_a_point_of_the_space(name: str) -> None:
    """A plan's text both ways; a codec that is left out takes the sum of entries with it."""
    graph, machines = two_layers(), cluster_of(4)
    plan = call(f"ddp(codec=topk(ratio=0.1),collective={name})", graph, machines)
    assert read_plan(write_plan(plan)) == plan
    acts = last_program(graph, plan, machines).acts(Collective)
    assert {act.algorithm for act in acts} == {name}
    assert {act.density for act in acts} == {4 / 36}
    plain = [i.act for _, i in last_program(graph, without_codecs(plan), machines).instructions()]
    assert {act.algorithm for act in plain if isinstance(act, Collective)} == {BACKEND}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("ddp(collective=sparse_split)", "no codec chooses any at the end; use one of the codecs adaptive, threshold"),
        ("ddp(collective=kylix,codec=q8)", "no codec chooses any at the end"),
        ("ddp(collective=kylix,codec=q8(where=end))", "q8 speaks of all numbers"),
        ("ddp(collective=kylix(3,2),codec=topk)", "has 6 ranks, not 4"),
        ("horovod(collective=sparse_doubling)", "no codec chooses any at the end"),
        ("pipe_sgd(collective=sparse_split,codec=onebit)", "onebit speaks of all numbers"),
    ],
)  # fmt: skip
def test_what_has_nothing_chosen_is_refused(text: str, sentence: str) -> None:
    graph, machines = two_layers(), cluster_of(4)
    with pytest.raises(PlanError) as caught:
        lower(graph, call(text, graph, machines), machines)
    assert sentence in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
