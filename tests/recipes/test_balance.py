"""Cuts against every other cut there is, and torchgpipe's rule against its own text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.cluster.cluster import Cluster, Device, Group, Link
from partita.cost.memory import peak_memory
from partita.errors import PlanError
from partita.graph.graph import Optimizer
from partita.graph.homes import stage_starts
from partita.lowering.lower import last_program
from partita.plan.mesh import Stage
from partita.recipes.balance import Blocks, block_partition, blocks_of, by_memory, by_time, by_time_each
from partita.recipes.catalogue import call
from partita.recipes.replicas import Layers, replicated_stages
from tests.priced import priced, whole_cores
from tests.small import cluster_of, layers, two_layers

TIMES = st.lists(st.integers(0, 20), min_size=4, max_size=10)


def cuttings(blocks: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Every way to cut into runs, none empty, by first blocks and the end."""
    for inner in combinations(range(1, blocks), parts - 1):
        yield (0, *inner, blocks)


def blocks_with(seconds: list[int], crossing: list[int] | None = None) -> Blocks:
    n = len(seconds)
    return Blocks(
        tuple(map(str, range(n))), tuple(map(float, seconds)), tuple(range(n)), tuple(seconds),
        tuple(crossing or [0] * n),
    )  # fmt: skip


@given(TIMES, st.data())
@settings(max_examples=50, deadline=None)
def test_all_divisions_at_once_are_those_one_by_one(seconds: list[int], data: st.DataObject) -> None:
    crossing = data.draw(st.lists(st.integers(0, 9), min_size=len(seconds), max_size=len(seconds)))
    speeds = data.draw(st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=6, max_size=6))
    widths = data.draw(st.lists(st.sampled_from([0.3, 7.0, float("inf")]), min_size=5, max_size=5))
    blocks = blocks_with(seconds, crossing)
    found = by_time_each(blocks, speeds, widths)
    assert len(found) == min(6, len(seconds))
    for parts, starts in enumerate(found, start=1):
        assert starts == by_time(blocks, speeds[:parts], widths[: parts - 1])


@given(TIMES, st.integers(1, 4), st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=4, max_size=4), st.data())
@settings(max_examples=150, deadline=None)
def test_time_is_balanced_as_well_as_can_be(
    times: list[int], parts: int, speeds: list[float], data: st.DataObject
) -> None:
    crossing = [0, *data.draw(st.lists(st.integers(0, 20), min_size=len(times) - 1, max_size=len(times) - 1))]
    widths = data.draw(st.sampled_from([[], [2.0, 1.0, 4.0]]))[: parts - 1]
    starts = by_time(blocks_with(times, crossing), speeds[:parts], widths)

    def slowest(edges: tuple[int, ...]) -> float:
        found = []
        for k, (start, stop) in enumerate(pairwise(edges)):
            messages = 2 * crossing[start] / widths[k - 1] if widths and k else 0.0
            messages += 2 * crossing[stop] / widths[k] if widths and k < parts - 1 else 0.0
            found.append(sum(times[start:stop]) / speeds[k] + messages)
        return max(found)

    best = min(slowest(edges) for edges in cuttings(len(times), parts))
    assert slowest((*starts, len(times))) == pytest.approx(best)


@given(TIMES, st.integers(1, 4))
def test_memory_is_balanced_as_well_as_can_be(saved: list[int], parts: int) -> None:
    flight = [parts - k for k in range(parts)]
    starts = by_memory(blocks_with(saved), flight, 4.0)

    def fullest(edges: tuple[int, ...]) -> float:
        parts_of = [range(start, stop) for start, stop in pairwise(edges)]
        return max(sum(4.0 * i + flight[k] * saved[i] for i in part) for k, part in enumerate(parts_of))

    assert fullest((*starts, len(saved))) == min(fullest(edges) for edges in cuttings(len(saved), parts))


def test_early_stages_get_fewer_layers_by_memory() -> None:
    """With 1F1B the first of four stages holds four microbatches, the last one."""
    even = Blocks(tuple("abcdefghijkl"), (1.0,) * 12, (0,) * 12, (1,) * 12, (0,) * 12)
    edges = (*by_memory(even, [4, 3, 2, 1], 4.0), 12)
    lengths = [stop - start for start, stop in pairwise(edges)]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 6])
def test_equal_layers_are_cut_equally(parts: int) -> None:
    starts = by_time(blocks_with([3] * 12), [1.0] * parts)
    assert starts == tuple(range(0, 12, 12 // parts))
    assert block_partition([3.0] * 12, parts) == starts


def reference_rule(sequence: list[float], partitions: int) -> list[int]:
    """torchgpipe/balance/blockpartition.py (BSD-3), as it stands there; the stops of its blocks."""
    n = len(sequence)
    minimum = min(sequence)
    maximum = max(sequence) - minimum
    normal = [0 for _ in sequence] if maximum == 0 else [(x - minimum) / maximum for x in sequence]
    splits = [n // partitions * (x + 1) for x in range(partitions - 1)] + [n]

    def block_size(i: int) -> float:
        start = splits[i - 1] if i > 0 else 0
        return sum(normal[start : splits[i]])

    def leaderboard() -> Iterator[tuple[float, int]]:
        return ((block_size(i), i) for i in range(partitions))

    while True:
        max_size, p = max(leaderboard())
        while True:
            min_size, q = min(leaderboard())
            if max_size <= min_size + 1:
                return splits
            if p < q:
                h = q - 1
                splits[h] -= 1
            else:
                h = q + 1
                splits[q] += 1
            if p == h:
                break


@given(st.lists(st.integers(0, 1000), min_size=4, max_size=40), st.integers(1, 4))
@settings(max_examples=1000, deadline=None)
def test_blocks_are_torchgpipes(sequence: list[int], parts: int) -> None:
    """The same cuts, and no block larger than another by more than the largest element less the smallest."""
    starts = block_partition([float(x) for x in sequence], parts)
    assert [*starts[1:], len(sequence)] == reference_rule([float(x) for x in sequence], parts)
    width = max(sequence) - min(sequence)
    edges = [*starts, len(sequence)]
    sizes = [sum(x - min(sequence) for x in sequence[a:b]) for a, b in pairwise(edges)]
    assert max(sizes) - min(sizes) <= width * (1 + 1e-9)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_pipedreams_programme_is_as_good_as_every_pipeline(data: st.DataObject) -> None:
    count, devices = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 4))
    numbers = st.lists(st.integers(0, 20), min_size=count, max_size=count)
    found = Layers(data.draw(numbers), data.draw(numbers), data.draw(numbers))

    def seconds(start: int, stop: int, replicas: int) -> float:
        summed = 2 * (replicas - 1) * sum(found.weights[start:stop]) / 2.0
        return max(sum(found.seconds[start:stop]), summed) / replicas

    def pipelines(start: int, left: int) -> Iterator[float]:
        for stop in range(start + 1, count + 1):
            for own in range(1, left + 1):
                here = seconds(start, stop, own)
                if stop == count and own == left:
                    yield here
                elif stop < count:
                    message = 2 * found.activations[stop - 1] / 2.0
                    yield from (max(here, message, rest) for rest in pipelines(stop, left - own))

    slowest, stages = replicated_stages(found, devices, 2.0)
    assert slowest == pytest.approx(min(pipelines(0, devices)))
    assert sum(stage.replicas for stage in stages) == devices
    assert [stage.start for stage in stages] == [0, *(stage.stop for stage in stages[:-1])]
    messages = [2 * found.activations[stage.stop - 1] / 2.0 for stage in stages[:-1]]
    times = [seconds(stage.start, stage.stop, stage.replicas) for stage in stages]
    assert max(*times, *messages, 0.0) == pytest.approx(slowest)


def test_a_slow_stage_gets_more_devices() -> None:
    """PP-05: what it computes is the Plan that runs; where messages cost nothing, one stage on all devices is best."""
    graph, machines = layers(6), whole_cores(4, 1e15)
    costs = priced(graph, machines, [2])
    slow = {name: 1.0 for name in costs.operators if "3x4" in name}
    dear = replace(costs, operators={**costs.operators, **slow})
    plan = call("one_f_one_b(balance=replicas)", graph, whole_cores(4, 200.0), dear)
    assert [len(stage.ranks) for stage in plan.stages] == [3, 1]
    assert not call("one_f_one_b(balance=replicas)", graph, machines, dear).stages


def test_an_unequal_device_gets_an_unequal_stage() -> None:
    devices = (Device(cores=1.0), Device(cores=1.0, speed=3.0))
    unequal = Cluster("unequal", Group("root", devices, (Link(1e15, 0.0),) * 2))
    graph = layers(16)
    plan = call("one_f_one_b(microbatches=2)", graph, unequal, priced(graph, unequal, [4]))
    slow = stage_starts(graph, [stage.first for stage in plan.stages])[1]
    assert 3 <= slow <= 6


def test_costs_are_taken_where_there_are_any() -> None:
    """A layer that was measured to be slow is alone on its stage."""
    graph, machines = layers(6), whole_cores(2, 1e15)
    costs = priced(graph, machines, [4])
    slow = {name: 1.0 for name in costs.operators if "3x4" in name}

    plan = call("gpipe(microbatches=2)", graph, machines, replace(costs, operators={**costs.operators, **slow}))
    assert plan.stages[1].first in ("fb", "f0")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpipe(stages=4)", "can be cut into"),
        ("gpipe(stages=9)", "needs 9 x 1 devices"),
        ("one_f_one_b(data=0)", "give 1 or more of each"),
        ("interleaved(chunks=0)", "give 1 or more of each"),
        ("interleaved", "1 place"),
        ("gpipe(stages=1)", "1 place"),
        ("gpipe(balance=luck)", "allowed are time, memory, blocks, replicas"),
        ("gpipe(balance=replicas,stages=2)", "leave out stages, data and chunks"),
        ("interleaved(balance=replicas)", "leave out stages, data and chunks"),
    ],
)
def test_what_no_pipeline_can_do(text: str, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        call(text, two_layers(), cluster_of(4))


@pytest.mark.parametrize(("recipe", "in_flight"), [
    ("gpipe(", (4, 4, 4)), ("one_f_one_b(", (3, 2, 1)), ("interleaved(chunks=2,microbatches=6,", (5, 3, 3, 3, 3, 1)),
])  # fmt: skip
@pytest.mark.parametrize("optimizer", [Optimizer(), Optimizer("Adam", (("m", 1.0, "float32"), ("v", 1.0, "float32")))])
def test_memory_is_that_of_the_schedule_and_of_the_optimizer(
    recipe: str, in_flight: tuple[int, ...], optimizer: Optimizer
) -> None:
    graph, machines = replace(layers(14, batch=48), optimizer=optimizer), cluster_of(3)
    microbatches = 6 if "chunks" in recipe else 4
    blocks = blocks_of(graph, machines, None, 48 // microbatches)
    starts = by_memory(blocks, in_flight, 2.0 + len(optimizer.state))
    plan = call(f"{recipe}stages=3,balance=memory)", graph, machines)
    assert [stage.first for stage in plan.stages] == ["", *(blocks.firsts[start] for start in starts[1:])]


@pytest.mark.parametrize("recipe", ["one_f_one_b", "zero_bubble"])
def test_no_cut_holds_much_less_by_memory(recipe: str) -> None:
    """PP-10: the fullest rank by the memory of the Program, against every other cut; what W waits for is held too."""
    graph, machines = layers(10, batch=480), cluster_of(3)
    plan, firsts = (
        call(f"{recipe}(stages=3,balance=memory)", graph, machines),
        blocks_of(graph, machines, None, 1).firsts,
    )

    def fullest(starts: Iterable[str]) -> int:
        program = last_program(graph, replace(plan, stages=tuple(map(Stage, ("", *starts)))), machines)
        return max(peak_memory(program, graph, rank) for rank in range(3))

    best = min(map(fullest, combinations(firsts[1:], 2)))
    assert fullest(stage.first for stage in plan.stages[1:]) <= 1.1 * best
