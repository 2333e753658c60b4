"""Where a step's time goes: waiting for samples and encoding by name, and all parts together the step."""

from __future__ import annotations

from dataclasses import astuple, replace

import pytest

from partita.cost.touch import Touch
from partita.program.breakdown import breakdown
from partita.program.timeline import Breakdown
from partita.simulator.simulate import simulate
from tests.priced import priced, whole_cores
from tests.programs import program_by
from tests.small import two_layers

OPERATOR = 1e-3


def spent(text: str, *, workers: int, loading: float = 0.0, copying: float = 0.0) -> Breakdown:
    graph, machines = two_layers(), whole_cores(workers, 1e6)
    program = program_by(text, graph, machines)
    costs = priced(graph, machines, (8 // workers,), operator=OPERATOR, copy=Touch(0.0, copying))
    found = simulate(program, replace(costs, load=Touch(loading, 0.0)))
    assert sum(astuple(found.breakdown)) == pytest.approx(found.step_seconds, rel=1e-9)
    return found.breakdown


@pytest.mark.parametrize("workers", [1, 2])
def test_what_loading_takes_beyond_computing_is_waited_for(workers: int) -> None:
    """Samples of the next round are fetched once forward, of three operators, has taken its own."""
    quick, slow = (spent("ddp", workers=workers, loading=seconds) for seconds in (OPERATOR, 0.1))
    assert quick.data == 0
    assert slow.data == pytest.approx(0.1 - (quick.backward + quick.exposed_communication), rel=0.02)


def test_encoding_is_no_backward_pass() -> None:
    plain, coded = (spent(text, workers=2, copying=1e-5) for text in ("ddp", "ddp(codec=topk)"))
    assert plain.codec == 0
    assert coded.codec > 0
    assert coded.backward == pytest.approx(plain.backward, rel=1e-9)


def test_rounds_longer_than_a_step_count_by_their_shares() -> None:
    """The last rounds of a run, whose spans are kept, may be slower than its mean."""
    graph, machines = two_layers(), whole_cores(2, 1e6)
    program = program_by("ddp", graph, machines)
    found = simulate(program, priced(graph, machines, (4,), operator=OPERATOR, copy=Touch(0.0, 0.0)))
    mine = [span for span in found.spans if span.rank == 0]
    rounds = len({span.round for span in mine})
    half = breakdown(program, mine, found.step_seconds / 2, rounds)
    assert sum(astuple(half)) == pytest.approx(found.step_seconds / 2, rel=1e-9)
    assert half.backward / half.forward == pytest.approx(found.breakdown.backward / found.breakdown.forward)


def test_what_the_leading_lane_itself_sends_is_no_backward_pass() -> None:
    graph, machines = two_layers(), whole_cores(2, 1e6)
    program = program_by("ddp", graph, machines)
    found = simulate(program, priced(graph, machines, (4,), operator=OPERATOR, copy=Touch(0.0, 0.0)))
    lane = program.roles[0].leading
    spans = [replace(span, lane=lane) if span.kind == "Collective" else span for span in found.spans]
    rounds = len({span.round for span in spans})
    moved, still = (breakdown(program, each, found.step_seconds, rounds) for each in (spans, found.spans))
    assert moved.backward == pytest.approx(still.backward, rel=1e-9)
    assert moved.exposed_communication > 0
    assert moved.exposed_communication == pytest.approx(still.exposed_communication, rel=1e-9)
