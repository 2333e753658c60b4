"""What hops encode, decode, add and send, by closed forms; and how long they take one after the other, by hand."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from partita.plan.wire import Codec
from partita.simulator.hops import makespan
from partita.wire.algorithms import all_reduce
from partita.wire.loads import HopLoad, columns_of, loads_of
from partita.wire.schedule import stranded

RANKS, EACH = 4, 30
N = RANKS * EACH
Q8 = Codec("q8", where="hop")
OVER = 3 * EACH  # (p - 1) / p of them all


def by_rank(loads: tuple[HopLoad, ...], what: str, end: str) -> list[int]:
    found = Counter[int]()
    for load in loads:
        found[getattr(load, end)] += getattr(load, what)
    return [found[rank] for rank in range(RANKS)]


@pytest.mark.parametrize("name", ["ring", "halving", "doubling", "tree"])
def test_columns_are_the_loads_with_who_does_what_for_the_first_time(name: str) -> None:
    """They are read once, whatever asks for them: what is sent and coded depends on no price."""
    asked = all_reduce(name, RANKS), N, 4, Q8
    loads, columns = loads_of(*asked), columns_of(*asked)
    assert columns_of(*asked) is columns
    fields = ("source", "target", "size", "encoded", "decoded", "added", "merged", "messages")
    assert all(getattr(columns, each).tolist() == [getattr(load, each) for load in loads] for each in fields)
    for hop, load in enumerate(loads):
        before = loads[:hop]
        assert columns.encodes[hop] == (load.source not in {one.source for one in before if one.encoded})
        assert columns.decodes[hop] == (load.target not in {one.target for one in before if one.decoded})
        awake = {rank for one in before for rank in (one.source, one.target)}
        assert (columns.sends[hop], columns.receives[hop]) == (load.source not in awake, load.target not in awake)


@pytest.mark.parametrize(
    ("name", "encoded", "decoded", "added"),
    [
        ("ring", [N] * 4, [2 * OVER] * 4, [OVER] * 4),
        ("halving", [N] * 4, [2 * OVER] * 4, [OVER] * 4),
        ("doubling", [2 * N] * 4, [2 * N] * 4, [2 * N] * 4),
        ("tree", [N] * 4, [2 * N, N, 2 * N, N], [2 * N, 0, N, 0]),
    ],
)
def test_a_sum_is_encoded_at_each_hop_and_a_result_once(
    name: str, encoded: list[int], decoded: list[int], added: list[int]
) -> None:
    """A rank of a ring encodes what it adds to, and its own part of the result, and passes on the others' results as
    they came; so does one that halves and doubles, and the root of a tree encodes for both whom it tells. Who hears
    decodes, and adds what is no result."""
    loads = loads_of(all_reduce(name, RANKS), N, 4, Q8)
    assert by_rank(loads, "encoded", "source") == encoded
    assert by_rank(loads, "decoded", "target") == decoded
    assert by_rank(loads, "added", "target") == added
    plain = loads_of(all_reduce(name, RANKS), N, 4)
    assert by_rank(plain, "added", "target") == added
    assert not any(load.encoded or load.decoded for load in plain)


def test_each_part_of_a_hop_is_a_coding_of_its_own() -> None:
    """Of so many bytes and a scale; the first hop and the last one that halve have two parts of four."""
    loads = loads_of(all_reduce("halving", RANKS), N, 4, Q8)
    coded = EACH + 4
    assert [load.size for load in loads] == [2 * coded] * 4 + [coded] * 8 + [2 * coded] * 4


def test_results_of_sparse_sums_follow_them_step_by_step() -> None:
    """A stream of a tenth of the numbers is 8 bytes an entry, and 8 bytes for each part in its head."""
    one = all_reduce("sparse_split_dense", RANKS)
    loads = loads_of(one, 10 * N, 4, None, 0.1)
    assert sorted({load.step for load in loads}) == list(range(len(one.steps)))
    streams = loads_of(all_reduce("kylix(2,2)", RANKS), 10 * N, 4, None, 0.1)
    parts = streams[0].messages  # a head and a body
    assert parts == 2
    assert streams[0].size == 2 * (8 * EACH + 8)


def test_strands_are_told_apart() -> None:
    loads = loads_of(stranded(all_reduce("ring", RANKS), 2), N, 4)
    sent = Counter[int]()
    for load in loads:
        sent[load.strand] += load.size
    assert sent == {0: 4 * RANKS * 2 * OVER // 2, 1: 4 * RANKS * 2 * OVER // 2}


def span(hops: list[tuple[int, int, int, int, int]], waits: list[float]) -> float:
    """Hops of (step, source, target, size, strand) where each rank has a port each way of a byte a second."""
    loads = [HopLoad(step, source, target, size, 0, 0, 0, strand=strand) for step, source, target, size, strand in hops]
    ways = [[2 * load.source, 2 * load.target + 1] for load in loads]
    return makespan(loads, ways, np.array(waits), np.ones(8))


def test_a_hop_waits_for_both_of_its_ranks() -> None:
    """What comes to rank 3 takes 5 s; rank 1, which heard behind 1 s, then sends there. In a strand of its own it need
    not wait but for the port."""
    assert span([(0, 0, 1, 1, 0), (0, 2, 3, 5, 0), (1, 1, 3, 2, 0)], [0.0, 3.0, 0.0]) == 5 + 3 + 2
    assert span([(0, 0, 1, 1, 1), (0, 2, 3, 5, 0), (1, 1, 3, 2, 1)], [0.0, 3.0, 0.0]) == max(5 + 3, 5 + 2)


def test_the_latest_of_what_came_in_a_step_counts() -> None:
    """The first message to rank 2 is decoded for 9 s, the second one, 2 s behind it, for none: then rank 2 sends."""
    hops = [(0, 0, 2, 2, 0), (0, 1, 2, 2, 0), (1, 2, 3, 1, 0)]
    assert span(hops, [9.0, 0.0, 0.0]) == 2 + 9 + 1
