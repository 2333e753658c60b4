"""Costs that workers measure for plans for one device and for several at once."""

from __future__ import annotations

from partita.lab.link_costs import sizes_for
from partita.lab.replies import TOUCHES
from partita.probes.link_timing import CHAINED
from partita.probes.touches import rank_touches
from partita.recipes.catalogue import call
from partita.recipes.fastest import candidates
from partita.runtime.device import CPU
from partita.tracing.capture import capture
from tests.processes.crews import Crews
from tests.small import perceptron

TASK = "tests/small.py:perceptron"


def test_a_plan_for_one_device_has_passes_of_its_own(crews: Crews) -> None:
    """What it touches is as old as its own steps, and nobody computes beside it."""
    crew = crews(TASK, "local:2")
    plans = [call(text, crew.graph, crew.cluster) for text in ("single", "ddp")]
    both, one = (crew.probe(some, ()) for some in (plans, plans[:1]))
    assert both.alone is not None
    assert one.alone is None
    assert both.alone.load is not None
    assert both.among(1).update == both.alone.update
    assert both.alone.again is not None
    assert both.among(2) is both
    assert set(both.operators) > set(one.operators)


def test_schedules_that_a_plan_may_choose_among_are_timed(crews: Crews) -> None:
    crew = crews(TASK, "local:2")
    plans, names = [call("ddp", crew.graph, crew.cluster)], candidates(2)
    wiring = crew.probe(plans, (), names).wiring
    assert [name for name, _ in wiring.schedules] == names
    for _, rows in wiring.schedules:
        assert [size for size, _ in rows] == [*CHAINED, sizes_for(crew.cluster)[-1]]
        assert all(seconds > 0 for _, seconds in rows)


def test_passes_by_themselves_are_without_what_does_not_depend_on_their_age() -> None:
    task = perceptron()
    assert set(rank_touches(task, capture(task), 4, codecs={}, device=CPU, age=0.0, passes=True)) == {
        *TOUCHES,
        "load",
        "at_hand",
    }
