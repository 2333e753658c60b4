"""What goes on beside computing is timed where it ends, and not where the operator does that is being computed then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from partita.graph.batch import substitute
from partita.probes import overlap_timing
from partita.probes.extra_lane import ExtraLane
from partita.probes.overlap_timing import AHEAD, beside, overlapped_seconds
from partita.probes.stretches import acting, make, stretches_of
from partita.program.space import Kind
from tests.small import two_layers


@pytest.mark.parametrize("world", [2, 3, 5])
def test_every_rank_comes_to_as_many_meetings(monkeypatch: pytest.MonkeyPatch, world: int) -> None:
    """The last of an odd number of ranks has no neighbour to send a message to, and waited where nobody came."""
    came = {rank: list[tuple[str, ...]]() for rank in range(world)}
    for rank, met in came.items():
        there = SimpleNamespace(
            barrier=lambda met=met: met.append(("barrier",)), get_rank=lambda rank=rank: rank,
            get_world_size=lambda: world,
        )  # fmt: skip
        monkeypatch.setattr(overlap_timing, "dist", there)
        monkeypatch.setattr(overlap_timing, "summing", lambda: None)
        monkeypatch.setattr(overlap_timing, "beside", lambda *given: 1.0)
        monkeypatch.setattr(overlap_timing, "beside_others", lambda *given, met=met: met.append(("others",)) or [])
        found = overlapped_seconds(2**20, [Kind.ALL_REDUCE, Kind.ALL_GATHER], iter(()), Mock(spec=ExtraLane))
        assert [size for size, _ in found[Kind.ALL_REDUCE]] == [4, 2**16, 2**18, 2**20]
        assert len(found["message"]) == (0 if rank == world - 1 and world % 2 else 4)
    assert len({tuple(met) for met in came.values()}) == 1
    assert came[0]


@pytest.mark.parametrize("rank", range(4))
def test_two_rest_and_exchange_until_the_first_tells_the_others(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    """Those two have the seconds of a message, half of there and back; the others compute until they hear."""
    sent, heard = list[int](), [False]

    class Told(ExtraLane):
        busy = property(lambda self: not heard[0])

        def __init__(self) -> None:
            pass

        def begin(self, call: object) -> None:
            pass

        def carry_out(self, call: Callable[[], object]) -> None:
            call()

    there = SimpleNamespace(get_rank=lambda: rank, get_world_size=lambda: 4)
    transport = SimpleNamespace(send=lambda told, to, *key: sent.append(to), receive=lambda *given: None)
    monkeypatch.setattr(overlap_timing, "dist", there)
    monkeypatch.setattr(overlap_timing, "summing", lambda: transport)
    monkeypatch.setattr(overlap_timing, "beside", lambda lane, call, turns, rest: 2.0 * turns)

    def computing() -> Iterator[int]:
        yield from range(3)
        heard[0] = True
        yield 3

    going = computing()
    found = overlap_timing.beside_others(Told(), torch.zeros(1), 5, going)
    assert found == ([5.0] if rank < 2 else [])
    assert sent == ([2, 3] if rank == 0 else [])
    assert list(going) == ([] if rank >= 2 else [0, 1, 2, 3])


def test_an_operator_that_outlasts_the_turns_does_not_count() -> None:
    """Each call takes 5 by a clock that the operator, which ends when all turns are over, moves by 1,000; the first
    turns, which take more, do not count."""
    now, calls = [0.0], list[float]()

    def call() -> None:
        calls.append(5.0 if len(calls) >= AHEAD else 50.0)
        now[0] += calls[-1]

    with ExtraLane() as lane:

        def computing() -> Iterator[None]:
            while lane.busy:
                time.sleep(1e-3)
            now[0] += 1000.0
            yield

        lane.rank.clock = lambda *_: now[0]
        assert beside(lane, call, 4, computing()) == 5.0
    assert len(calls) == AHEAD + 4


def test_operators_are_carried_out_one_by_one() -> None:
    """As many as are asked for, in the order of the step."""
    (held,) = make(stretches_of([substitute(two_layers(), 4)], 128)[0])
    done = list[int]()

    def code(number: int, environment: object, leaves: object) -> None:
        done.append(number)

    few = replace(held, codes=tuple(partial(code, number) for number in range(5)))
    going = acting([few, few])
    for _ in range(3):
        next(going)
    assert done == [0, 1, 2]
    assert len(list(going)) == 7
    assert done == [*range(5), *range(5)]
