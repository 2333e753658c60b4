"""The tiny Programs in which the worker itself is timed are Programs like any other."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from partita.probes import worker_timing
from partita.probes.worker_timing import couples, handing, pipeline, star, waking_seconds
from partita.program.instruction import Compute, Load, Receive, Send
from partita.program.program import Policy
from partita.program.verify import verify


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_every_message_of_the_little_pipeline_has_its_other_end(world: int) -> None:
    program = verify(pipeline(world))
    acts = [i.act for _, i in program.instructions()]
    assert sum(isinstance(act, Send) for act in acts) == sum(isinstance(act, Receive) for act in acts)
    assert sum(isinstance(act, Send) for act in acts) == 8 * (world - 1)
    assert sum(isinstance(act, Compute) for act in acts) == 8 * world


@pytest.mark.parametrize("world", [2, 3, 4])
def test_couples_exchange_what_they_are_asked_to(world: int) -> None:
    program = verify(couples(world, 4, 2, 2**10))
    assert program.size == world // 2 * 2
    for rank in range(program.size):
        acts = [i.act for i in program.role_of[rank].instructions]
        sent = [act for act in acts if isinstance(act, Receive if rank % 2 else Send)]
        assert (len(sent), {program.payload(act) for act in sent}) == (8, {2**10})
        assert sum(isinstance(act, Compute) for act in acts) == 5


@pytest.mark.parametrize("world", [2, 3, 4])
def test_a_server_takes_what_all_others_send(world: int) -> None:
    program = verify(star(world, 4, 2))
    *workers, server = ([i.act for i in program.role_of[rank].instructions] for rank in range(world))
    assert [sum(isinstance(act, Send) for act in acts) for acts in workers] == [8] * (world - 1)
    assert sum(isinstance(act, Receive) for act in server) == 8 * (world - 1)
    assert sum(isinstance(act, Compute) for act in server) == 1


def test_a_row_of_acts_follows_each_piece() -> None:
    lane = [type(i.act) for i in verify(pipeline(1, 3)).roles[0].on("compute")]
    assert lane == [Compute, Load, Load, Load] * 8


@pytest.mark.parametrize("policy", [Policy.ORDER, Policy.PRIORITY])
def test_another_lane_wakes_up_behind_each_piece(policy: Policy) -> None:
    role = verify(handing(policy)).roles[0]
    assert role.leading == "compute"
    acts = role.on("serve")
    assert [after.name for i in acts for after in i.after] == [i.name for i in role.on("compute")]
    assert {lane.policy for lane in role.lanes if lane.name == "serve"} == {policy}


def test_a_thread_that_wakes_up_takes_more() -> None:
    found = waking_seconds()
    assert set(found) == {"waking", "choosing"}
    assert all(1e-6 <= seconds < 1e-2 for seconds in found.values())


def test_computing_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now, around = [0.0], 3.0  # seconds of the clock, and those that pass between two looks at it

    def computed(least: float) -> float:
        now[0] += 2 * least
        return 2 * least

    def process_time() -> float:
        now[0] += around
        return now[0]

    monkeypatch.setattr(worker_timing, "computed", computed)
    monkeypatch.setattr(worker_timing, "time", SimpleNamespace(process_time=process_time))
    alone = 12  # instructions of a round
    assert worker_timing.instruction_seconds() == pytest.approx(around / worker_timing.ROUNDS / alone)
