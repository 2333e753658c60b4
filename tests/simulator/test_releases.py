"""Messages are posted at once where one thing releases them, and only then is one before the other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from partita.program.instruction import Send
from partita.simulator.crowds import posted, releases
from partita.simulator.simulate import clocked
from tests.priced import batches_of, priced, whole_cores
from tests.programs import program_by
from tests.small import two_layers


@pytest.mark.parametrize(
    ("recipe", "together"),
    [("ps_sync", 3), ("ps_async", 1), ("ssp", 1), ("backup_workers", 3), ("d_psgd", 2), ("p3", 3)],
)
def test_what_one_thing_releases_is_posted_at_once(recipe: str, together: int) -> None:
    program = program_by(recipe, two_layers(), whole_cores(4, 1e8))
    sends = [(role, i) for role, i in program.instructions() if isinstance(i.act, Send)]
    source = np.array([rank for role, _ in sends for rank in role.ranks])
    target = np.array(
        [i.act.to[k % len(i.act.to)] for role, i in sends for k in range(len(role.ranks)) if isinstance(i.act, Send)]
    )
    place, many = posted(source, target, releases(sends), program.size)
    assert many.max() == together
    assert set(place[many == together].tolist()) == set(range(together))
    for rank in range(program.size):
        assert (place[source == rank] < many[source == rank]).all()


def test_messages_of_several_releases_are_each_first_in_their_own() -> None:
    place, many = posted(np.array([0, 0, 0, 1]), np.array([1, 2, 1, 2]), np.array([0, 0, 1, 0]), 3)
    assert place.tolist() == [0, 1, 0, 0]
    assert many.tolist() == [2, 2, 1, 1]


def test_messages_of_one_release_leave_in_the_order_of_the_program() -> None:
    """Whatever the numbers of the ranks to which they go."""
    place, many = posted(np.zeros(3, np.int64), np.array([3, 1, 2]), np.zeros(3, np.int64), 4)
    assert (place.tolist(), many.tolist()) == ([0, 1, 2], [3, 3, 3])


@pytest.mark.parametrize("recipe", ["ps_async", "ssp"])
def test_workers_that_go_at_their_own_pace_do_not_fall_into_step(recipe: str) -> None:
    """A server's queue is no reason to wait, whether delays are bounded or not: none is served first for good."""
    graph, machines = two_layers(), whole_cores(4, 1e5)
    program = program_by(recipe, graph, machines)
    costs = priced(graph, machines, batches_of(program), operator=1e-4)
    found = []
    for queue in ((), ((16, 16.0), (2**20, 2.0**20))):
        wiring = replace(costs.wiring, queue=queue)
        found.append(clocked(program, replace(costs, wiring=wiring, unevenness=0.02)).seconds)
    assert found[1] == pytest.approx(found[0], rel=0.02)
