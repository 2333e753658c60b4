"""Starting workers takes longer than most of what tests ask of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from partita import api
from partita.lab.rehearsal import Rehearsal
from tests.processes.crews import SEED, Crews


@pytest.fixture(scope="module")
def crews() -> Iterator[Crews]:
    """`crews(task, cluster)` are workers with the task loaded under `SEED`, started once a module; anew only where a
    test has left them broken."""
    with ExitStack() as stack:
        started: dict[tuple[str, str], Rehearsal] = {}

        def crew(task: str, place: str) -> Rehearsal:
            if (task, place) not in started or started[task, place].group.broken:
                found = Rehearsal(task, api.graph_of(task), api.cluster_of(place), seed=SEED)
                started[task, place] = stack.enter_context(found)
            return started[task, place]

        yield crew
