"""A run that stands still says who holds it up: from where every rank stands and the Program."""

from __future__ import annotations

from partita.program.program import Program
from partita.program.stall import LanePosition, RankPosition, stall_of
from tests.program.test_verify import program_of

SILENT = {2: "stopped by a signal"}


def at(
    name: str, round: int, *, lane: str = "wire", meets: bool = True, done: dict[str, int] | None = None
) -> RankPosition:
    """A rank whose one busy lane has been in an instance for 40 s; the run began at step 10."""
    return RankPosition((LanePosition(lane, name, round, 40.0, meets),), done or {}, 10)


def said(program: Program, stands: dict[int, RankPosition], mute: dict[int, str]) -> tuple[tuple[int, ...], int, str]:
    stall = stall_of(program, stands, mute)
    assert stall is not None
    return stall.ranks, stall.step, stall.sentence


def test_a_stopped_rank_is_named_with_what_it_owes() -> None:
    program = program_of("ddp(bucket_bytes=40,order=fifo)")
    stands = {0: at("A1", 7), 1: at("A1", 7)}
    assert said(program, stands, SILENT) == (
        (2,), 17,
        "rank 2 (stopped by a signal) has not sent bucket b1 of step 17; ranks 0, 1 wait for it in A1",
    )  # fmt: skip


def test_a_rank_that_computes_for_long_is_named_with_where() -> None:
    program = program_of("ddp(bucket_bytes=40,order=fifo)")
    stands = {0: at("A0", 3), 1: at("A0", 3), 2: at("F", 3, lane="compute", meets=False)}
    assert said(program, stands, {})[2] == (
        "rank 2 (in F for 40 s) has not sent bucket b0 of step 13; ranks 0, 1 wait for it in A0"
    )


def test_who_waits_for_a_waiting_rank_is_not_misled() -> None:
    """Rank 2 waits for rank 1, that for rank 0: up a pipeline the first one is it."""
    program = program_of("one_f_one_b(stages=3,microbatches=2)", 3)
    stands = {2: at("R1>2.f#0", 0, lane="1>2.f"), 1: at("R0>1.f#0", 0, lane="0>1.f")}
    assert said(program, stands, {0: ""}) == (
        (0,), 10,
        "rank 0 (which says nothing) has not sent 0>1.f/4 of step 10; rank 1 waits for it in R0>1.f#0",
    )  # fmt: skip


def test_a_message_that_was_sent_is_not_missed() -> None:
    """The sender has done its part: nobody to blame but the link between; no other rank is."""
    program = program_of("ps_sync(bucket_bytes=40)")
    send = next(i for i in program.role_of[0].instructions if i.name == "S0")
    host = max(program.role_of)
    stands = {host: at("I0.0", 2), 0: at("F", 3, lane="compute", meets=False, done={send.name: 3})}
    assert stall_of(program, stands, {1: ""}) is None


def test_a_circle_is_called_one() -> None:
    program = program_of("ddp(bucket_bytes=40,order=fifo)")
    stands = {0: at("A0", 3), 1: at("A1", 3), 2: at("A1", 3)}
    assert said(program, stands, {})[2] == "ranks 0, 1, 2 wait for each other in step 13"


def test_no_stall_without_anybody_waiting() -> None:
    program = program_of("ddp")
    assert stall_of(program, {0: at("F", 1, lane="compute", meets=False)}, {1: "", 2: ""}) is None
