"""What is timed beside a plan's operators can be timed, and costs something."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import groupby, pairwise
from statistics import median

import pytest
import torch

from partita.graph.batch import substitute
from partita.graph.graph import Graph
from partita.graph.patterns import shares_memory
from partita.probes.bench import HOST, Bench
from partita.probes.extra_lane import ExtraLane
from partita.probes.operator_timing import timed_pass
from partita.probes.stretches import ending, make, stretches_of
from partita.probes.timing import (
    aged_seconds,
    cold_seconds,
    disturb,
    disturbance_of,
    elsewhere,
    few_operators,
    forget,
    slowed_by,
    surroundings,
)
from partita.probes.touches import parts_of, touch_runs
from partita.runtime.device import CPU
from tests.small import layers, two_layers


def spend(seconds: float) -> None:
    """Take so many core-seconds of this thread."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_the_parts_of_a_touch_are_not_negative() -> None:
    runs = touch_runs(lambda tensors: lambda: [t.add_(1.0) for t in tensors], [2**16])
    assert all(part >= 0.0 for part in parts_of((cold_seconds(*run) for run in runs), [2**16]))


def test_what_is_ahead_of_a_call_is_the_end_of_a_step() -> None:
    """A copy in a model of 1 MB was timed behind a pass over 16 MB, and predicted to take three times what it takes;
    one in a model of 80 MB took twice what was predicted."""
    graph = substitute(layers(12), 8)
    count = len(graph.operators)
    assert (ending(graph, 2**40).start, ending(graph, 2**40).stop) == (0, count)
    for least in (1, 500, 2000):
        found = ending(graph, least)
        assert (found.stop, found.lead) == (count, 0)
        assert made_by(graph, found.start) >= least > made_by(graph, found.start + 1)


def made_by(graph: Graph, start: int) -> int:
    """Bytes that its operators from `start` on make."""
    makers = [o for o in graph.operators[start:] if not shares_memory(o, graph)]
    return sum(t.size(graph.batch) for o in makers for t in o.outputs if t is not None)


def test_a_call_comes_behind_what_is_ahead_of_it() -> None:
    met: list[str] = []
    run: Callable[[], None] = lambda: met.append("run")  # noqa: E731
    begun = time.perf_counter()
    cold_seconds(run, replace(HOST, ahead=lambda: met.append("ahead"), rest=1e-3))
    assert met[0] == "run"
    assert set(zip(met[1::2], met[2::2], strict=True)) == {("ahead", "run")}
    assert time.perf_counter() - begun > 1e-3 * (len(met) // 2)


def test_a_large_tensor_alone_was_touched_long_ago() -> None:
    met: list[int] = []
    near, far = (replace(HOST, ahead=lambda n=n: met.append(n)) for n in (1, 2))
    sizes: list[list[int]] = []

    def passing(tensors: list[torch.Tensor]) -> Callable[[], None]:
        sizes.append([len(t) for t in tensors])
        return lambda: None

    for _, bench in touch_runs(passing, [2**16, 3], near, far):
        disturb(bench)
    assert sizes == [[64] * 8, [64] * 64, [2**16, 3]]
    assert met == [1, 1, 2]


def test_between_two_runs_of_the_same_kind_it_grows_old() -> None:
    """U of llama-5m took 1.2 and 10 ms for 0.6 and 0.9: what an update touches was touched a step ago, not a moment
    ago. Runs that take long enough by themselves take turns in groups of as few as that needs."""
    bench, starts = replace(HOST, ahead=lambda: None), [list[float]() for _ in range(5)]

    def run(at: int, seconds: float) -> None:
        starts[at].append(time.perf_counter())
        time.sleep(seconds)

    lengths = (1e-3, 1e-3, 1e-3, 0.03, 1e-3)
    found = aged_seconds([(partial(run, at, each), bench) for at, each in enumerate(lengths)], "abcde", 0.025)
    assert len(found) == 5
    assert all(0.0 <= each < 1e-3 for each in found)
    gaps = [[later - sooner for sooner, later in pairwise(own[1:])] for own in starts]
    assert all(median(own) > 0.024 for own in gaps)
    assert starts[4][1] > starts[0][-1]


def test_what_has_the_same_code_takes_no_turns_with_each_other() -> None:
    """U of bytes-gpt took 4.3 core-ms under `parallel_sgd` for 3: each of six updates had found the last one's code."""
    met: list[str] = []
    bench = replace(HOST, ahead=lambda: None)
    names = ("a0", "b0", "a1", "c0", "a2")
    aged_seconds([(partial(met.append, name), bench) for name in names], [name[0] for name in names], 0.05)
    rows = [[name for name in names if name[1] == number] for number in "012"]
    turns = [list(each) for _, each in groupby(met, key=lambda name: name[1])]
    assert len(turns) == len(rows)
    assert all(turn[: len(row)] == row and set(turn) == set(row) for turn, row in zip(turns, rows, strict=True))


def test_with_the_clock_of_the_process_what_goes_on_beside_counts_itself() -> None:
    def begin() -> Callable[[], bool]:
        thread = threading.Thread(target=lambda: spend(0.02))
        thread.start()
        return thread.is_alive

    found = slowed_by(begin, few_operators, clock=time.process_time)
    assert found > 0.5 * 0.02


@pytest.mark.parametrize("other_work", [disturb, elsewhere])
def test_other_work_passes_over_as_much_as_lies_between(other_work: Callable[[Bench], None]) -> None:
    forget()
    other_work(replace(HOST, between=4096))
    passed = surroundings(CPU)[0]
    assert passed[:1024].eq(1.0).all()
    assert passed[1024:].eq(0.0).all()
    other_work(HOST)
    assert passed.eq(surroundings(CPU)[0]).all()
    assert passed[1024:].eq(1.0).all()
    forget()


def test_a_lane_returns_when_what_was_handed_to_it_is_done() -> None:
    done = []
    with ExtraLane() as lane:
        for number in range(3):
            lane.carry_out(lambda n=number: done.append(n))
            assert done[-1] == number
            assert not lane.busy


def test_what_fails_beside_computing_is_raised() -> None:
    """In a thread it was printed, and what was to be timed seemed to take nothing; who waited for the end waited for
    good before that."""
    with pytest.raises(ZeroDivisionError):
        disturbance_of(lambda: 1 // 0, few_operators)


def test_a_lane_that_is_left_leaves_no_thread_behind() -> None:
    """A worker is probed again and again: each time a dozen threads would stay."""
    with ExtraLane() as lane:
        lane.carry_out(lambda: None)
    lane.thread.join(5.0)
    assert not lane.thread.is_alive()


def test_what_a_lane_raises_is_raised_where_it_was_asked() -> None:
    with ExtraLane() as lane, pytest.raises(ZeroDivisionError):
        lane.carry_out(lambda: 1 // 0)  # type: ignore[return-value, arg-type]


def test_what_a_turn_makes_is_free_memory_at_the_next() -> None:
    """Results that lived on had each turn fault in new pages, which took up to three quarters of what was measured."""
    graph = substitute(two_layers(), 4)
    held = [made for length in (1, 128) for one in stretches_of([graph], length) for made in make(one)]
    given = [[set(one) for one in made.sets] for made in held]
    for number in range(3):
        timed_pass(held, number, HOST)
    assert [[set(one) for one in made.sets] for made in held] == given


def test_what_a_thread_does_is_done_as_long_as_it_is_timed() -> None:
    calls: list[int] = []
    assert disturbance_of(lambda: calls.append(sum(range(1000))), few_operators, 0.005) >= 0.0
    assert len(calls) > 10
