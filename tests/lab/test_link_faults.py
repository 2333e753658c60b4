"""Links of a running lab that become slow, are away for a while, or stay away; processors that become slow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from partita import api
from partita.checkpoints.checkpoint import SavePolicy
from partita.errors import RunHung
from partita.lab.rehearsal import Rehearsal

TIMEOUT, UNDER_WAY, CULPRIT, RATE = 8.0, 20, 2, 1.25e8

pytestmark = [pytest.mark.slow, pytest.mark.lab, pytest.mark.usefixtures("namespaces")]


@dataclass
class Drill:
    """A training of `steps` steps on lab-4x1g during which something happens to a rank."""

    steps: int
    task: str = "digits-cnn"
    notes: list[str] = field(default_factory=list)
    begun: float = 0.0

    def run(self, happens: Callable[[Rehearsal], None] = lambda rehearsal: None) -> float:
        """The final loss."""
        graph, cluster = api.graph_of(self.task), api.cluster_of("lab-4x1g")
        plan = api.plan_of("ddp", graph, cluster)
        with Rehearsal(self.task, graph, cluster, timeout=TIMEOUT) as rehearsal:
            thread = threading.Thread(target=self._once_under_way, args=(rehearsal, happens), daemon=True)
            thread.start()
            take = rehearsal.train(plan, steps=self.steps, keep=SavePolicy(""), note=self.notes.append)
            thread.join()
        return take.final_loss

    def _once_under_way(self, rehearsal: Rehearsal, happens: Callable[[Rehearsal], None]) -> None:
        while rehearsal.group.workers[CULPRIT].step < UNDER_WAY:
            time.sleep(0.01)
        self.begun = time.monotonic()
        happens(rehearsal)


def test_a_link_that_becomes_slow_is_named_and_takes_time_but_is_no_hang() -> None:
    """FAULTS 19: 200 kbit/s for longer than --timeout, in which no collective ends."""
    drill = Drill(150)

    def happens(rehearsal: Rehearsal) -> None:
        rehearsal.group.lab.set_bandwidth(CULPRIT, 25_000)
        time.sleep(1.5 * TIMEOUT)
        rehearsal.group.lab.set_bandwidth(CULPRIT, RATE)

    drill.run(happens)
    assert [note for note in drill.notes if note.startswith(f"the link of rank {CULPRIT} carries ")], drill.notes
    assert time.monotonic() - drill.begun > TIMEOUT


def test_a_link_that_is_away_for_three_seconds_is_ridden_out() -> None:
    """FAULTS 20: the same run goes on, with the same numbers."""
    drill = Drill(100)

    def happens(rehearsal: Rehearsal) -> None:
        rehearsal.group.lab.set_link(CULPRIT, False)
        time.sleep(3.0)
        rehearsal.group.lab.set_link(CULPRIT, True)

    assert drill.run(happens) == pytest.approx(Drill(100).run(), rel=1e-5)


def test_a_link_that_stays_away_ends_the_run_with_its_name() -> None:
    """FAULTS 21: within --timeout."""
    drill = Drill(10**6)
    with pytest.raises(
        RunHung, match=f"nothing passes between rank {CULPRIT} and ranks .*all of these ranks are alive"
    ):
        drill.run(lambda rehearsal: rehearsal.group.lab.set_link(CULPRIT, False))
    assert time.monotonic() - drill.begun < 2 * TIMEOUT


def test_a_processor_that_becomes_slow_is_named_while_the_run_goes_on() -> None:
    """FAULTS 17: a fifth of its quota, of a model that computes more in a step than a quota gives at once: what is over
    before it is used up is as fast as elsewhere."""
    drill = Drill(100, "bytes-gpt")
    drill.run(lambda rehearsal: rehearsal.group.lab.set_quota(CULPRIT, 0.1))
    found = [note for note in drill.notes if " computes " in note]
    assert len(found) == 1, drill.notes
    assert found[0].startswith(f"rank {CULPRIT} computes ")
