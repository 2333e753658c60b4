"""Sums of vectors of which few numbers are not 0: SparCML's (CO-09) and Kylix' (CO-08), in plain numpy."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.arrays import Array
from partita.errors import PlanError
from partita.wire.algorithms import all_reduce
from partita.wire.interpreter import carried_out
from partita.wire.schedule import Hop, Schedule, even_edges
from partita.wire.streams import (
    DENSE,
    FORMS,
    HEAD,
    PLACE,
    Maps,
    Stream,
    body_size,
    delta,
    expected_size,
    packed,
    stream_of,
    union,
    unpacked,
)

NAMES = ("sparse_doubling", "sparse_split", "sparse_split_dense", "kylix")


def drawn(ranks: int, elements: int, entries: int, seed: int = 0, dtype: str = "float64") -> list[Array]:
    """A vector for each rank, with so many entries at random places."""
    draw, found = np.random.default_rng(seed), []
    for _ in range(ranks):
        vector = np.zeros(elements, dtype)
        vector[draw.choice(elements, entries, replace=False)] = draw.normal(size=entries)
        found.append(vector)
    return found


class Wire:
    """A collective whose messages are packed and unpacked; `maps` outlive it. `bytes` by step, `all` of each hop."""

    def __init__(self, name: str, ranks: int) -> None:
        self.schedule = all_reduce(name, ranks)
        self.maps: dict[tuple[int, Hop], tuple[Maps, Maps]] = defaultdict(lambda: ({}, {}))
        self.bytes: dict[int, int] = {}
        self.all: list[tuple[list[Stream], int]] = []

    def sum(self, vectors: list[Array]) -> list[Array]:
        assert self.schedule.sparse is not None
        self.bytes, self.all = {}, []
        edges = even_edges(len(vectors[0]), self.schedule.parts)
        parts = [[stream_of(v[a:b]) for a, b in pairwise(edges)] for v in vectors]
        return [np.concatenate([p.all() for p in one]) for one in carried_out(self.schedule, parts, note=self._note)]

    def _note(self, step: int, hop: Hop, streams: Any) -> None:
        sparse = self.schedule.sparse
        assert sparse is not None
        if sparse.whole and not hop.add:
            self.bytes[step] = self.bytes.get(step, 0) + sum(one.all().nbytes for one in streams)
            return
        theirs, ours = self.maps[step, hop] if sparse.maps else (None, None)
        head, body = packed(streams, theirs)
        item, lengths = streams[0].values.itemsize, [one.length for one in streams]
        assert len(body) == body_size(head, item)
        came = unpacked(head, body, lengths, streams[0].values.dtype, ours)
        assert all(a.all().tobytes() == b.all().tobytes() for a, b in zip(came, streams, strict=True))
        self.bytes[step] = self.bytes.get(step, 0) + len(body)
        self.all.append((list(streams), len(body)))


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("name", NAMES)
def test_it_is_the_dense_sum(name: str, ranks: int) -> None:
    """CO-09: for random supports, from none to all, and the same bits on every rank."""
    for elements, entries in ((1, 1), (5, 2), (97, 0), (97, 3), (97, 30), (97, 96), (1000, 100)):
        for dtype in ("float32", "float64"):
            vectors = drawn(ranks, elements, entries, dtype=dtype)
            ends = Wire(name, ranks).sum(vectors)
            assert np.allclose(ends[0], np.sum(vectors, 0), rtol=0, atol=1e-6 if dtype == "float32" else 1e-12)
            assert len({end.tobytes() for end in ends}) == 1


@given(st.lists(st.lists(st.integers(-2, 2), min_size=7, max_size=7), min_size=2, max_size=9), st.sampled_from(NAMES))
def test_any_support_on_any_number_of_ranks(rows: list[list[int]], name: str) -> None:
    """CO-09, also where entries cancel: whole numbers, so exactly."""
    vectors = [np.array(row, np.float64) for row in rows]
    for end in Wire(name, len(rows)).sum(vectors):
        assert np.array_equal(end, np.sum(vectors, 0))


def test_a_lost_hop_is_noticed() -> None:
    """The check of the sum can fail."""
    one = Wire("sparse_doubling", 4)
    whole = one.schedule
    one.schedule = Schedule(whole.name, 4, whole.parts, (whole.steps[0], whole.steps[1][1:]), whole.sparse)
    vectors = drawn(4, 50, 5)
    assert not np.allclose(one.sum(vectors)[whole.steps[1][0].target], np.sum(vectors, 0))


@pytest.mark.parametrize(("dtype", "item"), [("float32", 4), ("float64", 8)])
def test_the_switch_to_all_numbers(dtype: str, item: int) -> None:
    """CO-09: exactly where there are more than delta = N isize / (c + isize) entries, in a vector as in a sum."""
    for length in (1, 9, 100, 101):
        most = delta(length, item)
        assert most == length * item / (4 + item)
        for entries in range(length + 1):
            vector = np.zeros(length, dtype)
            vector[:entries] = 1
            low, high = vector.copy(), vector.copy()
            low[entries // 2 :], high[: entries // 2] = 0, 0
            for stream in (stream_of(vector), stream_of(low) + stream_of(high)):
                assert (stream.places is None) == (entries > most)
                assert len(packed([stream])[1]) == min(entries * (PLACE + item), length * item)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("name", NAMES)
def test_no_message_is_longer_than_either_form(name: str, ranks: int) -> None:
    """CO-09: bytes <= min(dense, sparse), hop by hop and part by part; the results of DSAR are all numbers."""
    for entries in (1, 20, 60, 200):
        one = Wire(name, ranks)
        one.sum(drawn(ranks, 240, entries, seed=entries))
        assert one.all
        for streams, size in one.all:
            bound = [min(np.count_nonzero(s.all()) * (PLACE + 8), s.length * 8) for s in streams]
            assert size <= sum(bound)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("entries", [100, 1000, 5000])
def test_unions_are_as_long_as_expected(ranks: int, entries: int) -> None:
    """CO-09: N (1 - (1 - k/N)^p) within 5 %, and so the bytes of the messages that carry them."""
    elements = 20_000
    vectors = drawn(ranks, elements, entries, dtype="float32")
    found = np.count_nonzero(np.sum(np.abs(vectors), 0))
    assert union(elements, entries / elements, ranks) == pytest.approx(found, rel=0.05)
    one = Wire("sparse_doubling", ranks)
    one.sum(vectors)
    for step, sent in one.bytes.items():
        assert sent / ranks == pytest.approx(expected_size(elements, 4, entries / elements, 2**step), rel=0.05)


def test_a_union_of_equal_supports_is_no_longer() -> None:
    """What is expected holds for places drawn independently only: the check can fail."""
    vectors = [drawn(1, 20_000, 1000)[0]] * 8
    found = np.count_nonzero(np.sum(np.abs(vectors), 0))
    assert union(20_000, 0.05, 8) > 6 * found


def test_split_sends_what_each_rank_sums() -> None:
    """CO-09: all but its own part of the entries, then the union of its part to each of the others."""
    ranks, elements, entries = 4, 4000, 200
    one = Wire("sparse_split", ranks)
    vectors = drawn(ranks, elements, entries)
    one.sum(vectors)
    edges = even_edges(elements, ranks)
    apart = [[np.count_nonzero(v[a:b]) for a, b in pairwise(edges)] for v in vectors]
    first = sum(n for rank, row in enumerate(apart) for part, n in enumerate(row) if part != rank)
    last = (ranks - 1) * np.count_nonzero(np.sum(np.abs(vectors), 0))
    assert one.bytes == {0: 12 * first, 1: 12 * last}


@pytest.mark.parametrize(("degrees", "ranks"), [("2,2,2", 8), ("4,2", 8), ("3", 3), ("2,3", 6)])
def test_places_travel_once(degrees: str, ranks: int) -> None:
    """CO-08: a second sum over the same places sends values alone; one other place on one rank, and the hops that it
    passes send theirs anew."""
    one = Wire(f"kylix({degrees})", ranks)
    vectors = drawn(ranks, 500, 20)
    one.sum(vectors)
    first = sum(one.bytes.values())
    again = [vector * 3 for vector in vectors]
    assert np.allclose(one.sum(again)[0], np.sum(again, 0))
    assert sum(one.bytes.values()) * (PLACE + 8) == first * 8
    moved = [vector.copy() for vector in again]
    moved[0][int(np.flatnonzero(np.sum(np.abs(vectors), 0) == 0)[-1])] = 1.0
    assert np.allclose(one.sum(moved)[0], np.sum(moved, 0))
    assert first * 8 < sum(one.bytes.values()) * (PLACE + 8) < first * (PLACE + 8)


def test_without_maps_places_travel_always() -> None:
    """The check can fail."""
    one, vectors = Wire("sparse_split", 4), drawn(4, 500, 20)
    one.sum(vectors)
    first = dict(one.bytes)
    one.sum(vectors)
    assert one.bytes == first


def zipf(ranks: int, elements: int, entries: int) -> list[Array]:
    """Vectors whose places are drawn by Zipf's law, spread over the range as a hash would."""
    draw = np.random.default_rng(1)
    weight = 1.0 / np.arange(1, elements + 1)
    place, found = draw.permutation(elements), []
    for _ in range(ranks):
        vector, chosen = np.zeros(elements), draw.choice(elements, entries, replace=False, p=weight / weight.sum())
        vector[place[chosen]] = draw.normal(size=entries)
        found.append(vector)
    return found


def held_after(name: str, vectors: list[Array], layers: int) -> int:
    """Entries that all ranks hold of what they still sum, after so many layers down."""
    whole = all_reduce(name, len(vectors))
    edges, some = (
        even_edges(len(vectors[0]), whole.parts),
        Schedule(name, whole.ranks, whole.parts, whole.steps[:layers]),
    )
    ends = carried_out(some, [[stream_of(v[a:b]) for a, b in pairwise(edges)] for v in vectors])
    mine = {hop.target: range(hop.start, hop.stop) for hop in some.steps[-1]} if layers else {}
    return sum(len(ends[r][part].values) for r in range(whole.ranks) for part in mine.get(r, range(whole.parts)))


@pytest.mark.parametrize("degrees", ["2,4", "4,2", "2,2,2", "8"])
def test_layers_hold_no_more_than_those_before(degrees: str) -> None:
    """CO-08: whatever the degrees, since entries of the same place become one; of a power law many do."""
    layers, vectors = len(degrees.split(",")), zipf(8, 20_000, 400)
    held = [held_after(f"kylix({degrees})", vectors, layer) for layer in range(layers + 1)]
    assert held[0] == 8 * 400
    assert held[-1] == np.count_nonzero(np.sum(np.abs(vectors), 0))
    assert all(after < before for before, after in pairwise(held))


@pytest.mark.parametrize("degrees", ["4,2", "4,4", "8,4,2"])
def test_layers_of_power_laws_shrink(degrees: str) -> None:
    """CO-08: with places of a power law, and degrees that do not grow, each layer down carries no more than the one
    before, since places collide."""
    ranks = int(np.prod([int(d) for d in degrees.split(",")]))
    one = Wire(f"kylix({degrees})", ranks)
    one.sum(zipf(ranks, 20_000, 400))
    down = [one.bytes[step] for step in range(len(degrees.split(",")))]
    assert all(after <= before for before, after in pairwise(down))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("sparse_ring", "sparse_doubling"), ("kylix(2,2)", "4 ranks, not 6"), ("sparse_split(2)", "no number")],
)
def test_what_is_no_sum_of_streams(name: str, sentence: str) -> None:
    with pytest.raises(PlanError) as caught:
        all_reduce(name, 6)
    assert sentence in str(caught.value)


def test_a_head_says_how_long_its_body_is() -> None:
    streams = [Stream(4, np.ones(4)), stream_of(np.array([0.0, 2.0, 0.0, 0.0])), stream_of(np.zeros(3))]
    head, body = packed(streams)
    assert (head // FORMS).tolist() == [4, 1, 0]
    assert head[0] % FORMS == DENSE
    assert HEAD * len(streams) == head.nbytes
    assert len(body) == body_size(head, 8) == 4 * 8 + 12
