"""A lane that takes whichever message is there does not commit itself to one that is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from partita.program.instruction import After, Instruction, Mark, Receive
from partita.program.program import Lane, Policy, Program, Role
from partita.program.space import Space
from partita.runs.assembly import initial, make_rank
from partita.runtime import waits
from partita.runtime.dispatch import Dispatch, dispatch_of
from partita.runtime.leg import Interval
from partita.runtime.rank import Rank
from partita.runtime.state import make_state
from partita.runtime.worker import lanes
from partita.runtime.workload import Workload
from partita.transport.inprocess import InProcess, Rendezvous
from tests.captures import capture
from tests.runtime.arrivals import arriving
from tests.small import perceptron


def test_what_opens_while_a_lane_chooses_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another lane may open a Receive between the moment at which this one asks for its messages and that at which it
    takes one: it then waited for the message of a worker that waited for it to take another's."""
    rank, rendezvous = server()
    run, choose = lanes(rank, Interval(1), lambda _: False)["from"], Dispatch.first

    def beside(dispatch: Dispatch) -> Any:
        if not rank.board.done.get("M"):
            rank.board.finish("M", 0)
        return choose(dispatch)

    monkeypatch.setattr(Dispatch, "first", beside)
    pending = next(run)
    assert not pending.ready()
    bucket = rank.program.trained[0]
    InProcess(1, rendezvous).send(torch.zeros(bucket.elements), 2, "late", 0)
    assert pending.ready()


def test_a_lane_looks_again_only_at_what_waited_for_what_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked after every change of every instruction, a server's lane of fifty cost more than its updates."""
    rank, _ = server(many := 30)
    dispatch, asked, may = dispatch_of(rank, rank.role.lanes[-1], Interval(2)), list[str](), waits.may_start

    def counted(rank: Rank, instruction: Instruction, round: int) -> bool:
        asked.append(instruction.name)
        return may(rank, instruction, round)

    monkeypatch.setattr(waits, "may_start", counted)
    for k in range(many):
        dispatch.put(rank.role.on_name[f"U{k}"], 0)
    assert not dispatch.clear()
    assert len(asked) == many
    rank.board.finish("M7", 0)
    assert dispatch.clear()
    assert asked[many:] == ["U7"]
    rank.board.finish("of nobody", 0)
    taken = dispatch.take()
    assert taken is not None
    assert taken[0].name == "U7"
    assert asked[many:] == ["U7"]
    rank.board.happens()
    assert not dispatch.clear()
    assert len(asked) == many + 1 + (many - 1)


def test_a_lane_takes_each_of_many_without_looking_at_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It went through all that were open for each that it took: half a millisecond of a core with 200 slices of P3."""
    rank, _ = server(many := 30)
    dispatch, asked, since = dispatch_of(rank, rank.role.lanes[-1], Interval(1)), list[str](), waits.StartWait.since

    def counted(wait: waits.StartWait) -> int:
        asked.append(wait.instruction.name)
        return since(wait)

    monkeypatch.setattr(waits.StartWait, "since", counted)
    order = [(7 * k) % many for k in range(many)]
    for k in range(many):
        dispatch.put(rank.role.on_name[f"U{k}"], 0)
    for k in order:
        rank.board.finish(f"M{k}", 0)
    taken = []
    while (one := dispatch.take()) is not None:
        taken.append(one[0].name)
        dispatch.rest()
    assert taken == [f"U{k}" for k in order]
    assert len(asked) == many


def test_the_most_urgent_that_may_start_is_taken_first() -> None:
    """Whenever it became ready: of equals who has been so longer, then who was put first."""
    rank, _ = server(6, (2, 1, 2, 0, 1, 1))
    dispatch = dispatch_of(rank, rank.role.lanes[-1], Interval(1))
    for k in range(6):
        dispatch.put(rank.role.on_name[f"U{k}"], 0)
    for k in (0, 2, 4, 1):
        rank.board.finish(f"M{k}", 0)
    assert [taken(dispatch) for _ in range(2)] == ["U4", "U1"]
    rank.board.finish("M3", 0)
    assert [taken(dispatch) for _ in range(4)] == ["U3", "U0", "U2", ""]


def test_what_needs_one_of_several_has_waited_since_the_first_of_them() -> None:
    """Not since ever, because of those that have not come: who could start before goes first, and who could later does
    not, however late the others come."""
    rank, _ = server(4, any_of=2)
    dispatch = dispatch_of(rank, rank.role.lanes[-1], Interval(1))
    for k in (0, 2, 3):
        dispatch.put(rank.role.on_name[f"U{k}"], 0)
    for k in (2, 0, 3):
        rank.board.finish(f"M{k}", 0)
    assert taken(dispatch) == "U2"
    rank.board.finish("M1", 0)
    assert [taken(dispatch) for _ in range(3)] == ["U0", "U3", ""]


def taken(dispatch: Dispatch) -> str:
    """The name of what a slot takes, and has done at once; "" for nothing."""
    one = dispatch.take()
    if one is None:
        return ""
    dispatch.landed(one[0])
    dispatch.rest()
    return one[0].name


def test_a_credit_is_of_all_that_is_in_flight() -> None:
    """The next one starts while fewer bytes than the credit are: of 3 bytes each, under 6, two, and one for each that
    lands; under 7 three. There are no more slots than that."""
    for credit, together in ((6, 2), (7, 3), (1, 1)):
        rank, _ = server(5)
        sizes = {f"U{k}": 3 for k in range(5)}
        dispatch = Dispatch(rank, replace(rank.role.lanes[-1], credit=credit), Interval(1), sizes)
        assert dispatch.count == together
        for k in range(5):
            dispatch.put(rank.role.on_name[f"U{k}"], 0)
            rank.board.finish(f"M{k}", 0)
        begun = [one[0] for one in iter(dispatch.take, None)]
        assert len(begun) == together
        dispatch.landed(begun[0])
        assert dispatch.take()
        assert not dispatch.take()


def server(many: int = 0, priorities: Sequence[int] = (), any_of: int = 0) -> tuple[Rank, Rendezvous]:
    """Rank 2, whose lane `from` takes a message of rank 0 after `M`, of another lane, and one of rank 1 at any time;
    with so many Marks, each after another one, in a lane of their own, by
    `priorities` if they have any; the first one after any of so many."""
    task = perceptron()
    graph = capture(task)
    whole, rendezvous = arriving(graph, 2), Rendezvous()
    bucket = whole.trained[0].name
    policy = Policy.PRIORITY if priorities else Policy.ARRIVAL
    body = (
        Instruction("M", Mark(), "serve"),
        Instruction("I0", Receive(bucket, (0,), "early", Space.INBOX), "from", (After("M"),)),
        Instruction("I1", Receive(bucket, (1,), "late", Space.INBOX), "from"),
    )
    body += tuple(Instruction(f"M{k}", Mark(), "serve") for k in range(many))
    body += tuple(
        Instruction(f"U{k}", Mark(), "many", (After(f"M{k}"),), priority=priorities[k] if priorities else 0)
        for k in range(many)
    )
    if any_of:
        places = {one.name: k for k, one in enumerate(body)}
        first = replace(body[places["U0"]], after=tuple(After(f"M{k}") for k in range(any_of)), need=1)
        body = (*body[: places["U0"]], first, *body[places["U0"] + 1 :])
    made = (Lane("serve"), Lane("from", Policy.ARRIVAL), *(many > 0) * (Lane("many", policy),))
    role = Role("server", (2,), body, made, keeps="server")
    program = Program("choosing", (role,), whole.segments, whole.buckets, whole.batch)
    state = make_state(graph, program, role, task, initial(task, 0)[1], "cpu", 2)
    return make_rank(Workload(task, graph), program, 2, state, InProcess(2, rendezvous)), rendezvous
