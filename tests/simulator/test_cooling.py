"""Computing takes more behind a wait: as much as was measured, most of it at once, and nothing where nobody waits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from partita.simulator.cooling import FETCHED, fetched
from partita.simulator.simulate import simulate
from tests.simulator.test_overlap import COMPUTE, ROUNDS, prepared

MORE = 1e-3


def longer(text: str, ratio: float, rows: tuple[tuple[float, float], ...], slow: float = 1.0) -> list[float]:
    """By how many core-seconds a step of each rank is longer."""
    program, costs = prepared(text, ratio, 1.0)
    costs = replace(costs, slowdowns=(slow,) * 4)
    cold = replace(costs, wiring=replace(costs.wiring, cooling=rows))
    alone, found = (simulate(program, each, rounds=ROUNDS).cores for each in (costs, cold))
    return [b - a for a, b in zip(alone, found, strict=True)]


@pytest.mark.parametrize("ratio", [0.5, 3.0])
def test_a_step_that_waits_for_its_sums_fetches_its_own_again(ratio: float) -> None:
    """Ten milliseconds of computing fetch all that a wait of 1 ms or more leaves to be fetched."""
    assert COMPUTE > 4 * FETCHED
    assert longer("ddp", ratio, ((1e-3, MORE), (1.0, MORE))) == pytest.approx([MORE] * 4, rel=0.02)


def test_a_slow_device_fetches_as_slowly_as_it_computes() -> None:
    assert longer("ddp", 3.0, ((1e-3, MORE), (1.0, MORE)), slow=2.0) == pytest.approx([2 * MORE] * 4, rel=0.02)


def test_the_longer_it_waits_the_more() -> None:
    rows = ((COMPUTE, 0.0), (5 * COMPUTE, MORE))
    short, half = (longer("ddp", ratio, rows) for ratio in (0.9, 3.0))
    assert short == pytest.approx([0.0] * 4, abs=1e-9)
    assert half == pytest.approx([MORE / 2] * 4, rel=0.02)


def test_who_never_waits_has_all_at_hand() -> None:
    assert longer("parallel_sgd", 0.5, ((1e-3, MORE), (1.0, MORE))) == pytest.approx([0.0] * 4, abs=1e-9)


def test_a_stage_fetches_again_with_its_first_microbatches() -> None:
    """Who waits for other stages twice in a step fetches twice at most, however many microbatches there are."""
    found = longer("gpipe(microbatches=4)", 0.5, ((1e-4, MORE), (1.0, MORE)))
    assert all(0.5 * MORE < more < 3 * MORE for more in found)


def test_most_is_fetched_at_once() -> None:
    parts = fetched(np.array([0.0, FETCHED, 2 * FETCHED, 1.0]))
    assert parts == pytest.approx([0.0, 1 - np.exp(-1), 1 - np.exp(-2), 1.0])
