"""Each rule of `verify` fails on a program that breaks just this rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from partita.errors import ProgramError
from partita.program.gate import Gate
from partita.program.instruction import After, Collective, Instruction, Mark, Receive, Send
from partita.program.layout import Bucket, Piece
from partita.program.program import Lane, Policy, Program, Role
from partita.program.space import Kind
from partita.program.verify import verify
from partita.simulator.simulate import simulate
from tests.priced import priced
from tests.programs import program_by
from tests.small import cluster_of, two_layers

Change = Callable[[Instruction], Instruction]


def program_of(text: str, size: int = 3) -> Program:
    """A sound program; on three workers a minibatch of 8 makes two roles."""
    graph, machines = two_layers(), cluster_of(size)
    return program_by(text, graph, machines)


def changed(program: Program, name: str, change: Change, role: int = 0) -> Program:
    """The program with one instruction of one role changed."""
    one = program.roles[role]
    assert name in one.on_name
    body = tuple(change(i) if i.name == name else i for i in one.instructions)
    return with_role(program, replace(one, instructions=body), role)


def with_role(program: Program, role: Role, place: int = 0) -> Program:
    return replace(program, roles=(*program.roles[:place], role, *program.roles[place + 1 :]))


def waiting(*after: After) -> Change:
    return lambda i: replace(i, after=i.after + after)


def says(program: Program, words: str) -> None:
    with pytest.raises(ProgramError, match=words):
        verify(program)


@pytest.mark.parametrize(
    "text", ["single", "ddp(bucket_bytes=40)", "ps_sync(bucket_bytes=40)", "pipe_sgd(staleness=2)"]
)
def test_a_sound_program_is_given_back(text: str) -> None:
    program = program_of(text)
    assert verify(program) is program


def test_an_unknown_predecessor() -> None:
    says(changed(program_of("ddp"), "F", waiting(After("Z"))), "F of role worker-2 waits for Z, which the role lacks")


def test_an_unknown_guard() -> None:
    says(changed(program_of("ddp"), "F", lambda i: replace(i, unless=After("Z"))), "waits for Z")


def test_a_name_twice() -> None:
    says(changed(program_of("ddp"), "P0", lambda i: replace(i, name="F")), "2 instructions named F")


def test_an_unknown_lane() -> None:
    says(changed(program_of("ddp"), "F", lambda i: replace(i, lane="side")), "in lane 'side', which the role lacks")


def test_more_is_needed_than_waited_for() -> None:
    says(changed(program_of("ddp"), "F", lambda i: replace(i, need=5)), "F needs 5 of 1 predecessors")


def test_a_send_without_its_receive() -> None:
    program = program_of("ps_sync")
    other = changed(program, "S0", lambda i: replace(i, act=replace(i.act, key="other")))  # type: ignore[type-var]
    says(
        other, "(message other from rank . to rank 2 is sent|message b0.up from rank . to rank 2 is received) and never"
    )


def test_a_receive_without_its_send() -> None:
    program = program_of("ps_sync")
    worker = program.roles[0]
    silent = replace(worker, instructions=tuple(i for i in worker.instructions if not isinstance(i.act, Send)))
    silent = replace(silent, instructions=tuple(replace(i, after=()) for i in silent.instructions))
    says(with_role(program, silent), "message b0.up from rank 0 to rank 2 is received and never sent")


def test_collectives_in_different_orders() -> None:
    program = program_of("ddp(bucket_bytes=40)")
    assert len(program.roles) == 2
    swap = {"A0": "A1", "A1": "A0"}
    role = program.roles[1]
    body = {i.name: i for i in role.instructions}
    order = [swap.get(i.name, i.name) for i in role.instructions]
    says(
        with_role(program, replace(role, instructions=tuple(body[n] for n in order)), 1),
        "disagree on their collectives",
    )


def test_a_collective_that_a_member_lacks() -> None:
    program = program_of("ddp")
    wider = Collective(Kind.ALL_REDUCE, "b0", ((0, 1, 2, 7),))
    for role in range(2):
        program = changed(program, "A0", lambda i: replace(i, act=wider), role)
    says(program, "disagree on their collectives")


def test_a_circle_of_waiting_on_one_rank() -> None:
    says(changed(program_of("ddp"), "P0", waiting(After("A0"))), "never finishes.*\n.*rank 0 compute: P0 of round 0")


def test_a_lane_that_waits_for_what_comes_later_in_it() -> None:
    says(changed(program_of("single"), "F", waiting(After("U0"))), "rank 0 compute: F of round 0")


def test_the_event_clock_finds_a_circle_that_is_left_to_it() -> None:
    circle = changed(program_of("ddp"), "P0", waiting(After("A0")))
    assert verify(circle, clocked=True) is circle
    with pytest.raises(ProgramError, match="never become ready"):
        simulate(circle, priced(two_layers(), cluster_of(3), range(1, 9)))


def test_waiting_for_the_round_before_is_no_circle() -> None:
    program = changed(program_of("single"), "F", waiting(After("U0", 1)))
    assert verify(program) is program


def exchange(first: tuple[str, str], second: tuple[str, str], lanes: tuple[Lane, ...]) -> Program:
    """Two ranks that each send to and receive from the other, in the given orders."""

    def role(rank: int, order: tuple[str, str]) -> Role:
        peer, mine, theirs = 1 - rank, f"m{rank}", f"m{1 - rank}"
        acts = {"send": Send("b0", (peer,), mine), "receive": Receive("b0", (peer,), theirs)}
        body = (Instruction(name, acts[name], lanes[i % len(lanes)].name) for i, name in enumerate(order))
        return Role(f"r{rank}", (rank,), tuple(body), lanes)

    return Program("exchange", (role(0, first), role(1, second)), (), (Bucket("b0", "float32", 4, (Piece("w"),)),), 1)


SEND_FIRST, RECEIVE_FIRST = ("send", "receive"), ("receive", "send")
ONE, TWO, ANY = (Lane("wire"),), (Lane("out"), Lane("in")), (Lane("wire", Policy.ARRIVAL),)


@pytest.mark.parametrize("order", [SEND_FIRST, RECEIVE_FIRST], ids=["send", "receive"])
def test_two_that_wait_for_each_other(order: tuple[str, str]) -> None:
    """A send ends when its receive does, so both ranks sending first never get to receive."""
    says(exchange(order, order, ONE), "rank 0 wire: .* of round 0\n  rank 1 wire")


@pytest.mark.parametrize(("second", "lanes"), [(RECEIVE_FIRST, ONE), (SEND_FIRST, TWO), (SEND_FIRST, ANY)])
def test_an_exchange_that_ends(second: tuple[str, str], lanes: tuple[Lane, ...]) -> None:
    program = exchange(SEND_FIRST, second, lanes)
    assert verify(program) is program


def test_pipelined_updates_have_a_slot_for_each_round_that_they_look_back() -> None:
    program = program_of("pipe_sgd(staleness=2)")
    assert program.slots == 3
    assert [a.rounds for i in program.roles[0].instructions if i.name == "U0" for a in i.after] == [3]


def test_a_gate_that_waits_for_one_who_waits_for_it() -> None:
    """Two at a gate, of whom one comes after the other has gone through."""
    gate = Gate("both", 2)
    body = (
        Instruction("A", Mark(), "serve", gate=gate),
        Instruction("B", Mark(), "serve", (After("A"),), gate=gate),
    )
    role, bucket = Role("r", (0,), body, (Lane("serve", Policy.ARRIVAL),)), Bucket("b0", "float32", 4, (Piece("w"),))
    program = Program("gated", (role,), (), (bucket,), 1)
    says(program, "never finishes")
    alone = tuple(replace(i, gate=Gate("one", 1)) for i in body)
    program = replace(program, roles=(replace(role, instructions=alone),))
    assert verify(program) is program
