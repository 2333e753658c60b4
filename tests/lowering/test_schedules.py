"""The schedules' rows against their drawings, their closed forms and the laws of a pipeline."""

from __future__ import annotations

from itertools import accumulate, product, takewhile

import pytest

from partita.cost.costs import Costs
from partita.cost.wiring import Wiring
from partita.lowering.lower import last_program
from partita.lowering.schedules import ROWS, interleaved, one_f_one_b, put_off, under_way, zero_bubble
from partita.plan.mesh import Mesh, Stage
from partita.plan.plan import Plan
from partita.plan.schedule import Order, Schedule
from partita.plan.sync import Sync
from partita.simulator.simulate import simulate
from tests.priced import FREE, signatures, whole_cores
from tests.small import layers

SILENT = Wiring(start=0.0, message=0.0, sent=0.0, received=0.0, reduced=0.0, efficiency=1.0)
PIPES = [(p, m) for p in (1, 2, 3, 4, 7) for m in (1, 2, 3, 4, 8, 13)]


@pytest.mark.parametrize("order", ROWS)
@pytest.mark.parametrize(("p", "m"), PIPES)
@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_every_pass_comes_once_and_the_pipeline_ends(order: Order, p: int, m: int, chunks: int) -> None:
    """Played with a rank a row and no time at all: no row waits for what comes behind it."""
    chunks = chunks if order is Order.INTERLEAVED else 1
    rows = [list(ROWS[order](p, rank, m, chunks)) for rank in range(p)]
    kinds = "FBW" if order is Order.ZERO_BUBBLE else "FB"
    for row in rows:
        assert sorted(map(str, row)) == sorted(
            f"{kind}{i}" + (f".{c}" if c else "") for kind in kinds for c in range(chunks) for i in range(m)
        )
    done: set[tuple[str, int, int]] = set()
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            while row and _ready(row[0].kind, row[0].chunk * p + rank, row[0].microbatch, p * chunks, done):
                one = row.pop(0)
                done.add((one.kind, one.chunk * p + rank, one.microbatch))
                moved = True
    assert not any(rows)


def _ready(kind: str, stage: int, i: int, stages: int, done: set[tuple[str, int, int]]) -> bool:
    if kind == "F":
        return stage == 0 or ("F", stage - 1, i) in done
    if kind == "W":
        return ("B", stage, i) in done
    return ("F", stage, i) in done and (stage == stages - 1 or ("B", stage + 1, i) in done)


@pytest.mark.parametrize(("p", "m"), PIPES)
def test_one_f_one_b_holds_as_many_as_stages_follow(p: int, m: int) -> None:
    for rank in range(p):
        held = most = 0
        for one in one_f_one_b(p, rank, m, 1):
            held += {"F": 1, "B": -1}[one.kind]
            most = max(most, held)
        assert most == min(p - rank, m)


GRID = [(p, m) for p in range(2, 7) for m in range(1, 25)]


@pytest.mark.parametrize("order", ROWS)
def test_what_is_under_way_is_what_the_rows_say(order: Order) -> None:
    """As many of each chunk as have gone forward before the first backward, and never more of all together."""
    for (p, m), chunks in product(GRID, range(1, 5 if order is Order.INTERLEAVED else 2)):
        for rank in range(p):
            row = ROWS[order](p, rank, m, chunks)
            ahead = list(takewhile(lambda one: one.kind == "F", row))
            counted = tuple(sum(one.chunk == c for one in ahead) for c in range(chunks))
            assert under_way(order, p, rank, m, chunks) == counted
            assert max(accumulate({"F": 1, "B": -1, "W": 0}[one.kind] for one in row)) == len(ahead)


def test_what_is_put_off_is_what_the_rows_say() -> None:
    """W of zero bubble, where as many microbatches are under way as ever."""
    for p, m in GRID:
        for rank in range(p):
            held, found = [0, 0], []
            for one in zero_bubble(p, rank, m, 1):
                held[0] += {"F": 1, "B": -1, "W": 0}[one.kind]
                held[1] += {"F": 0, "B": 1, "W": -1}[one.kind]
                found.append(tuple(held))
            assert max(found) == (*under_way(Order.ZERO_BUBBLE, p, rank, m, 1), put_off(Order.ZERO_BUBBLE, p, rank, m))
            assert max(map(sum, found)) <= p


def played(order: Order, p: int, m: int, chunks: int, seconds: dict[str, float]) -> float:
    """The length of the rows, each pass as soon as its rank and what it reads are there."""
    rows, ends, free = [list(ROWS[order](p, rank, m, chunks)) for rank in range(p)], {}, [0.0] * p
    while any(rows):
        for rank, row in enumerate(rows):
            while row and _ready(row[0].kind, row[0].chunk * p + rank, row[0].microbatch, p * chunks, set(ends)):
                one = row.pop(0)
                stage, i = one.chunk * p + rank, one.microbatch
                reads = {
                    "F": [("F", stage - 1, i)],
                    "B": [("F", stage, i), ("B", stage + 1, i)],
                    "W": [("B", stage, i)],
                }
                begin = max(free[rank], *(ends.get(key, 0.0) for key in reads[one.kind]))
                free[rank] = ends[one.kind, stage, i] = begin + seconds[one.kind]
    return max(free)


@pytest.mark.parametrize("order", ROWS)
def test_bubbles_are_the_closed_forms(order: Order) -> None:
    """PP-01, PP-11, EX-07 for every length of a pipe up to six; interleaved ones also where the length does not divide
    the number of microbatches, from as many microbatches on as there are ranks."""
    for p, m in GRID[:: 5 if order is Order.INTERLEAVED else 1]:
        if order is Order.ZERO_BUBBLE:
            for f, b, w in ((1.0, 1.0, 1.0), (1.0, 1.25, 0.75), (1.0, 2.0, 0.0)) if m >= p else ():
                found = played(order, p, m, 1, {"F": f, "B": b, "W": w})
                assert found - m * (f + b + w) == pytest.approx((p - 1) * (f + b - w))
            continue
        for chunks in range(1, 5) if order is Order.INTERLEAVED and m >= p else (1,):
            found = played(order, p, m, chunks, {"F": 1.0, "B": 2.0})
            bubble = 1 - 3 * chunks * m / found
            assert bubble == pytest.approx((p - 1) / (chunks * m + p - 1))
            assert m < 4 * p or bubble <= 0.2


def test_the_rows_are_as_drawn() -> None:
    assert " ".join(map(str, one_f_one_b(3, 1, 4, 1))) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert " ".join(map(str, zero_bubble(3, 1, 4, 1))) == "F0 F1 B0 F2 B1 W0 F3 B2 W1 B3 W2 W3"
    assert " ".join(map(str, interleaved(2, 1, 4, 2))).startswith("F0 F1 F0.1 B0.1 F1.1 B1.1 F2 B0 F3 B1 F2.1 B2.1")


def step(order: Order, p: int, m: int, chunks: int, waits: float = 1.0) -> float:
    """Simulated seconds of a step where a layer's F and B last 1 s and its W `waits`, and nothing else anything."""
    graph = layers(p * chunks, batch=m)
    machines = whole_cores(p, 1e15)
    starts = (Stage(), *(Stage(f"f{k}") for k in range(1, p * chunks)))
    plan = Plan("x", Mesh((("pipe", p),)), starts, schedule=Schedule(order, m, chunks), sync=(Sync(),))
    price = {f"{kind}{k}": waits if kind == "w" else 1.0 for kind in "fwx" for k in range(p * chunks)}
    names = dict(zip(signatures(graph, 1), (o.name for o in graph.operators), strict=True))
    table = {name: price.get(operator, 0.0) for name, operator in names.items()}
    costs = Costs(graph, machines, table, FREE, FREE, FREE, FREE, (1,), 0.0, SILENT)
    return simulate(last_program(graph, plan, machines), costs).step_seconds


@pytest.mark.parametrize("order", [Order.FILL_DRAIN, Order.ONE_F_ONE_B])
@pytest.mark.parametrize(("p", "m"), [(2, 1), (2, 4), (3, 4), (4, 8), (4, 3)])
def test_bubble_of_gpipe_and_one_f_one_b(order: Order, p: int, m: int) -> None:
    assert 1 - 3 * m / step(order, p, m, 1) == pytest.approx((p - 1) / (m + p - 1), abs=1e-9)


@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 2), (3, 6, 2), (4, 8, 2), (2, 4, 3)])
def test_bubble_of_interleaved(p: int, m: int, v: int) -> None:
    assert 1 - 3 * v * m / step(Order.INTERLEAVED, p, m, v) == pytest.approx((p - 1) / (v * m + p - 1), abs=1e-9)


@pytest.mark.parametrize(("p", "m"), [(2, 2), (2, 4), (3, 4), (4, 8)])
@pytest.mark.parametrize("w", [1.0, 0.5])
def test_bubble_of_zero_bubble(p: int, m: int, w: float) -> None:
    """(p-1)(F+B-W) seconds."""
    assert step(Order.ZERO_BUBBLE, p, m, 1, w) - m * (2 + w) == pytest.approx((p - 1) * (2 - w), abs=1e-9)
