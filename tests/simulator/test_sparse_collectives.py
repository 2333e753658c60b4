"""A simulated sum of chosen entries carries the bytes of the unions that are expected, and lasts as long as they do."""

from __future__ import annotations

import pytest

from partita.lowering.lower import last_program
from partita.program.timeline import Timeline
from partita.recipes.catalogue import call
from partita.simulator.simulate import simulate
from partita.wire.algorithms import all_reduce
from partita.wire.loads import loads_of
from partita.wire.streams import HEAD, PLACE, delta, union
from tests.priced import priced, whole_cores
from tests.small import two_layers

WIDTH = 400
ELEMENTS = 6 * WIDTH
COMPUTE = 10e-3
SLOW = 1e5  # bytes a second
ENTRY = PLACE + 4


def step_of(collective: str, ranks: int, ratio: float, alpha: float = 0.0, codec: str = "") -> Timeline:
    """One bucket of 2,400 numbers, of which each device sends the part `ratio`, computing for 10 ms."""
    graph, machines = two_layers(WIDTH), whole_cores(ranks, SLOW)
    plan = call(f"ddp(codec=topk(ratio={ratio}){codec},collective={collective})", graph, machines)
    program = last_program(graph, plan, machines)
    batches = sorted({segment.batch for segment in program.segments})
    costs = priced(graph, machines, batches, operator=COMPUTE / 10, latency=alpha)
    return simulate(program, costs)


def body(entries: float, length: float = ELEMENTS) -> int:
    return round(entries * ENTRY) if entries <= delta(int(length), 4) else round(4 * length)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("ratio", [0.01, 0.1, 0.3])
def test_doubling_carries_unions_that_grow(ranks: int, ratio: float) -> None:
    """CO-09: N (1 - (1 - k/N)^(2^s)) entries in step s, or all numbers where these take less; a head a message."""
    sent, steps = 0, (ranks - 1).bit_length()
    for step in range(steps):
        sent += HEAD + body(union(ELEMENTS, ratio, 2**step))
    found = step_of("sparse_doubling", ranks, ratio)
    assert found.wire_sent == (sent,) * ranks
    for alpha in (0.0, 5e-3):
        seconds = step_of("sparse_doubling", ranks, ratio, alpha).step_seconds - COMPUTE
        assert seconds == pytest.approx(2 * steps * alpha + sent / SLOW, rel=1e-9)


@pytest.mark.parametrize("ratio", [0.01, 0.1, 0.3])
def test_doubling_merges_unions_that_grow(ratio: float) -> None:
    """CO-09: each rank merges what comes into its own, N (1 - (1 - k/N)^(2^s)) entries in step s, or as many as all
    numbers take the bytes of."""
    loads = loads_of(all_reduce("sparse_doubling", 8), ELEMENTS, 4, density=ratio)
    assert len(loads) == 3 * 8
    for load in loads:
        entries = ELEMENTS * (1 - (1 - ratio) ** 2**load.step)
        assert load.merged == round(min(entries, ELEMENTS * 4 / 8))


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_split_carries_its_parts(ranks: int) -> None:
    """CO-09: a part of the own entries to each other rank, then the union of the own part, or all of its numbers, also
    of eight bits."""
    part, ratio = ELEMENTS // ranks, 0.05
    first = body(part * ratio, part)
    union_of_all, all_numbers = HEAD + body(union(part, ratio, ranks), part), 4 * part
    for name, last in (("sparse_split", union_of_all), ("sparse_split_dense", all_numbers)):
        sent = (ranks - 1) * (HEAD + first + last)
        assert step_of(name, ranks, ratio).wire_sent == (sent,) * ranks
    sent = (ranks - 1) * (HEAD + first + part + 4)
    assert step_of("sparse_split_dense", ranks, ratio, codec="+q8").wire_sent == (sent,) * ranks


def test_a_butterfly_of_one_layer_is_split() -> None:
    assert step_of("kylix(4)", 4, 0.02).wire_sent == step_of("sparse_split", 4, 0.02).wire_sent


def test_few_entries_beat_codings_that_all_get_and_many_do_not() -> None:
    """CO-09: gathered codings grow with the number of ranks, whatever their places; a union stops at all numbers."""
    few, many = ({way: step_of(way, 8, ratio) for way in ("backend", "sparse_split")} for ratio in (0.005, 0.4))
    assert max(many["sparse_split"].wire_sent) < 0.5 * max(many["backend"].wire_sent)
    assert many["sparse_split"].step_seconds < many["backend"].step_seconds
    assert max(few["sparse_split"].wire_sent) > max(few["backend"].wire_sent)


def test_small_messages_want_few_steps() -> None:
    """CO-09: doubling has 2 log2 p messages behind each other, split 2 x 2 at a time."""
    slow = {name: step_of(name, 8, 0.001, 50e-3).step_seconds for name in ("sparse_doubling", "sparse_split")}
    assert slow["sparse_split"] < slow["sparse_doubling"]
