"""Every schedule sums, on any number of ranks, and sends what its closed form says."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import ceil, log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.arrays import Reals
from partita.errors import PlanError, ProgramError
from partita.wire.algorithms import ALGORITHMS, all_reduce, factors
from partita.wire.interpreter import carried_out
from partita.wire.rings import pairwise_reduce_scatter, ring_all_gather, ring_reduce_scatter
from partita.wire.schedule import Hop, Schedule, cut, even_edges, schedule, stranded, strands_of, summed_once
from partita.wire.trees import tree_broadcast, tree_reduce
from tests.wire.sending import bytes_sent, elements_of, hops_of

RANKS = range(1, 18)


def names(ranks: int) -> list[str]:
    """Every algorithm for so many ranks."""
    widths = [w for w in range(1, ranks + 1) if ranks % w == 0]
    return [a for a in ALGORITHMS if a != "hierarchical"] + [f"hierarchical({w})" for w in widths]


def sums(one: Schedule) -> bool:
    """Whether each rank ends with exactly one contribution of every rank: digits of base 64 count them."""
    ends = carried_out(one, [[64**rank] * one.parts for rank in range(one.ranks)])
    return all(part == sum(64**rank for rank in range(one.ranks)) for parts in ends for part in parts)


@pytest.mark.parametrize("ranks", RANKS)
def test_every_rank_ends_with_the_sum(ranks: int) -> None:
    """CO-02..07: ring, tree, doubling, halving-doubling, binary blocks, hierarchical, p = 1..17."""
    for name in names(ranks):
        assert sums(all_reduce(name, ranks)), name


@given(st.integers(2, 9), st.integers(0, 100), st.integers(1, 4))
def test_strands_together_do_what_the_whole_does(ranks: int, elements: int, of: int) -> None:
    """Each strand has its own part of every part; it asks for nothing that another strand does."""
    draw = np.random.default_rng(ranks)
    vectors = [draw.normal(size=elements) for _ in range(ranks)]
    for name in names(ranks):
        one = all_reduce(name, ranks)
        edges = even_edges(elements, one.parts)
        whole = ended(one, vectors, edges)
        many = stranded(one, of)
        assert np.array_equal(ended(many, vectors, cut(edges, of)), whole)
        for strand in strands_of(many):
            vectors_of = [[vector[a:b] for a, b in pairwise(cut(edges, of))] for vector in vectors]
            assert len(strand.steps) == len(one.steps)
            vectors = [np.concatenate(parts) for parts in carried_out(strand, vectors_of)]
        assert np.array_equal(np.stack(vectors), whole)
        vectors = [draw.normal(size=elements) for _ in range(ranks)]


def ended(one: Schedule, vectors: list[Reals], edges: tuple[int, ...]) -> Reals:
    """What each rank ends with."""
    parts = [[vector[a:b] for a, b in pairwise(edges)] for vector in vectors]
    return np.stack([np.concatenate(found) for found in carried_out(one, parts)])


@pytest.mark.parametrize("name", ["ring", "tree", "doubling", "halving", "blocks", "pairwise", "butterfly"])
def test_the_check_can_fail(name: str) -> None:
    """Without any one hop, or with one that copies where it should add, the sum is wrong."""
    whole = all_reduce(name, 6)
    for k, step in enumerate(whole.steps):
        for hop in step:
            for changed in ((), (replace(hop, add=not hop.add),)):
                rest = (*(h for h in step if h is not hop), *changed)
                assert not sums(Schedule(name, 6, whole.parts, (*whole.steps[:k], rest, *whole.steps[k + 1 :]))), hop


@given(st.integers(2, 13), st.integers(0, 200))
def test_all_ranks_end_with_the_same_bits(ranks: int, elements: int) -> None:
    """CO-02: a part is summed along one way, whatever its length."""
    draw = np.random.default_rng(ranks)
    vectors = [draw.normal(size=elements).astype(np.float32) for _ in range(ranks)]
    for name in names(ranks):
        one = all_reduce(name, ranks)
        edges = even_edges(elements, one.parts)
        ends = carried_out(one, [[v[i:j] for i, j in pairwise(edges)] for v in vectors])
        first, *others = (np.concatenate(parts) for parts in ends)
        assert all(first.tobytes() == other.tobytes() for other in others), name
        assert np.allclose(first, np.sum(vectors, axis=0, dtype=np.float64), atol=1e-4), name


@pytest.mark.parametrize("ranks", range(2, 14))
def test_ranks_end_with_the_same_bits_of_encoded_hops_where_one_of_them_adds_a_part_up(ranks: int) -> None:
    """And with others where partners add up what each of them sent: recursive doubling."""
    vectors = np.random.default_rng(ranks).normal(size=(ranks, 3 * ranks))
    for name in names(ranks):
        one = all_reduce(name, ranks)
        parts = [[v[i:j] for i, j in pairwise(even_edges(3 * ranks, one.parts))] for v in vectors]
        first, *others = map(np.concatenate, carried_out(one, parts, lambda value, rank, part: np.round(value, 1)))
        assert all(np.array_equal(first, other) for other in others) is summed_once(one), name
        assert summed_once(one) is (name != "doubling"), name


@given(st.integers(2, 40), st.integers(0, 5000))
def test_bytes_of_a_ring(ranks: int, elements: int) -> None:
    """CO-02: rank i sends 2n - size(c_{i+1}) - size(c_{i+2}); all together 2(p-1)n."""
    edges = even_edges(elements, ranks)
    size = [4 * (edges[i + 1] - edges[i]) for i in range(ranks)]
    sent = bytes_sent(all_reduce("ring", ranks), elements, 4)
    assert sent == [8 * elements - size[(i + 1) % ranks] - size[(i + 2) % ranks] for i in range(ranks)]
    assert sum(sent) == 2 * (ranks - 1) * elements * 4


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_bytes_and_steps_of_powers_of_two(ranks: int) -> None:
    """CO-04: n log2 p; CO-05: 2(p-1)/p n in 2 log2 p steps, and binary blocks are the same there (CO-06)."""
    elements, depth = 16 * 15, round(log2(ranks))
    doubling, halving = all_reduce("doubling", ranks), all_reduce("halving", ranks)
    assert bytes_sent(doubling, elements, 4) == [4 * elements * depth] * ranks
    assert len(doubling.steps) == depth
    assert bytes_sent(halving, elements, 4) == [2 * (ranks - 1) * elements * 4 // ranks] * ranks
    assert len(halving.steps) == 2 * depth
    assert all_reduce("blocks", ranks).steps == halving.steps


@pytest.mark.parametrize("ranks", RANKS)
def test_messages_of_a_tree(ranks: int) -> None:
    """CO-03: p-1 messages each way, in ceil(log2 p) steps each."""
    for part in (tree_reduce(ranks), tree_broadcast(ranks)):
        assert len(hops_of(part)) == ranks - 1
        assert len(part.steps) == ceil(log2(ranks))


@pytest.mark.parametrize("ranks", [3, 5, 6, 7, 9, 11, 12, 13, 14, 15, 17])
def test_binary_blocks_beyond_powers_of_two(ranks: int) -> None:
    """CO-06: at most 2 (floor(log2 p) + 1) deep; a rank of a small block exchanges b_large / b_small messages."""
    blocks = all_reduce("blocks", ranks)
    assert len(blocks.steps) <= 2 * (ranks.bit_length())
    sizes = [1 << k for k in reversed(range(ranks.bit_length())) if ranks >> k & 1]
    first = [sum(sizes[:k]) for k in range(len(sizes) + 1)]
    for k in range(1, len(sizes)):
        up = [h for h in hops_of(blocks) if h.source == first[k] and first[k - 1] <= h.target < first[k]]
        assert len(up) == sizes[k - 1] // sizes[k]
        assert all(h.add for h in up)


@pytest.mark.parametrize(("ranks", "width"), [(4, 2), (8, 4), (12, 3), (32, 4)])
def test_bytes_between_nodes(ranks: int, width: int) -> None:
    """CO-07: a node sends 2(p/k-1)/(p/k) n to others, in 2(k-1) + 2(p/k-1) steps."""
    one, nodes, elements = all_reduce(f"hierarchical({width})", ranks), ranks // width, ranks * 6
    across = [h for h in hops_of(one) if h.source // width != h.target // width]
    sent = sum(elements_of(one, h, elements) for h in across if h.source < width)
    assert sent * nodes == 2 * (nodes - 1) * elements
    assert len(one.steps) == 2 * (width - 1) + 2 * (nodes - 1)


@given(st.integers(1, 12), st.integers(0, 12))
def test_reduce_scatter_and_all_gather(ranks: int, owns: int) -> None:
    """Rank i ends with the sum of part i + owns, (p-1)/p n sent; from there everybody gets everything."""
    for one in (ring_reduce_scatter(ranks, owns), *((pairwise_reduce_scatter(ranks),) if owns == 0 else ())):
        ends = carried_out(one, [[64**rank] * ranks for rank in range(ranks)])
        assert all(ends[i][(i + owns) % ranks] == sum(64**r for r in range(ranks)) for i in range(ranks))
        assert bytes_sent(one, ranks, 4) == [4 * (ranks - 1)] * ranks
    held = [[part if part == (rank + owns) % ranks else -1 for part in range(ranks)] for rank in range(ranks)]
    assert carried_out(ring_all_gather(ranks, owns), held) == [list(range(ranks))] * ranks


@given(st.integers(1, 17))
def test_nobody_meets_two_at_once_in_a_ring(ranks: int) -> None:
    for step in all_reduce("ring", ranks).steps:
        assert len({h.source for h in step}) == len({h.target for h in step}) == len(step)


def test_degrees_of_a_butterfly() -> None:
    """CO-08: the layers' groups take their shares of what is still whole."""
    assert factors(12) == (3, 2, 2)
    two, three = all_reduce("butterfly(2,3)", 6), all_reduce("butterfly(3,2)", 6)
    assert sums(two)
    assert sums(three)
    assert [{h.stop - h.start for h in step} for step in two.steps] == [{3}, {1}, {1}, {3}]
    assert [{h.stop - h.start for h in step} for step in three.steps] == [{2}, {1}, {1}, {2}]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("rung", "no collective 'rung'"),
        ("ring(3)", "takes no number"),
        ("hierarchical", "hierarchical(2)"),
        ("hierarchical(4)", "hierarchical(2)"),
        ("butterfly(2,2)", "4 ranks, not 6"),
    ],
)
def test_what_is_no_collective(name: str, sentence: str) -> None:
    with pytest.raises(PlanError) as caught:
        all_reduce(name, 6)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("hop", [Hop(0, 0, 0, 1, True), Hop(0, 2, 0, 1, True), Hop(0, 1, 1, 1, True)])
def test_what_is_no_hop(hop: Hop) -> None:
    with pytest.raises(ProgramError):
        schedule("wrong", 2, 1, [[hop]])
