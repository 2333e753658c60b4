from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from partita.lowering.lower import last_program
from partita.program.program import Lane, Program, Role
from partita.program.shares import shares_of
from partita.program.timeline import Span
from partita.recipes.catalogue import call
from partita.runs.result import RunResult, result_of
from tests.small import cluster_of, two_layers


def reply_of(rank: int, ends: list[list[float]], **other: Any) -> dict[str, Any]:
    """What a rank reports that ended steps then."""
    return {
        "rank": rank, "ends": ends, "losses": [], "spans": [], "resident": 1, "sent": 0, "cores": ends,
        "final_loss": 1.0, "weights": "", "stopped": None, "since": 0, "begun": 0.0, "went_on": 0.0, "idle": 0.0,
        "merges": [], **other,
    }  # fmt: skip


def test_a_step_is_that_of_the_slowest_rank() -> None:
    """As of a pipeline whose first stage runs ahead."""
    lane, names = (Lane("compute"),), ("ahead", "behind")
    roles = tuple(Role(name, (rank,), (), lane) for rank, name in enumerate(names))
    replies = [reply_of(rank, [[n, (n + 1) * each] for n in range(5)]) for rank, each in enumerate((0.25, 1.0))]
    assert result_of(Program("p", roles, (), (), 8), replies, 2).timeline.step_seconds == 1.0


def test_a_step_within_a_round_ends_with_its_round() -> None:
    program = Program("p", (Role("worker", (0,), (), (Lane("compute"),)),), (), (), 8, steps=2)
    losses = [[0, 4.0, 0.0], [1, 3.0, 0.0], [2, 2.0, 0.0], [3, 1.0, 0.0]]
    reply = reply_of(0, [[1, 0.5], [3, 1.0]], losses=losses)
    found = result_of(program, [reply], 2)
    assert found.loss == ((0, 0.5, 4.0), (1, 0.5, 3.0), (2, 1.0, 2.0), (3, 1.0, 1.0))


def test_seconds_count_from_the_first_step() -> None:
    """On rank 0's clock, of a run that went on after two steps that had taken a second each."""
    program = Program("p", (Role("worker", (0,), (), (Lane("compute"),)),), (), (), 8)
    losses = [[at, 4.0 - at, 0.0] for at in range(4)]
    ends = [[0, 101.0], [1, 102.0], [2, 103.0], [3, 105.0]]
    reply = reply_of(0, ends, losses=losses, begun=100.0, went_on=102.0, since=2)
    assert [seconds for _, seconds, _ in result_of(program, [reply], 0).loss] == [1.0, 2.0, 3.0, 5.0]
    assert result_of(program, [reply], 0).timeline.step_seconds == 1.5


def alone(*replies: dict[str, Any], discard: int = 0) -> RunResult:
    """The result of a Program of one worker."""
    program = Program("p", (Role("worker", (0,), (), (Lane("compute"),)),), (), (), 8)
    return result_of(program, list(replies), discard)


def test_core_seconds_count_from_what_was_used_before() -> None:
    """And a step from when the run went on, which is later than the last end that its checkpoint has."""
    ends = [[0, 1.0], [1, 2.0], [2, 4.0], [3, 6.0]]
    reply = reply_of(0, ends, since=2, went_on=3.0, cores=[[2, 9.0], [3, 11.0]], idle=8.0)
    found = alone(reply).timeline
    assert (found.step_seconds, found.cores) == (1.5, (1.5,))
    assert alone(reply, discard=1).timeline.step_seconds == 2.0


def test_of_ranks_that_have_no_part_in_the_program_nothing_is_taken() -> None:
    """Such as those of the phases before."""
    replies = [reply_of(rank, [[0, 1.0], [1, 2.0 + rank]], sent=rank + 1) for rank in (1, 0)]
    found = alone(*replies).timeline
    assert (found.step_seconds, found.wire_sent, len(found.resident)) == (1.0, (1,), 1)


def test_a_worker_that_was_away_says_nothing_of_a_step() -> None:
    roles = tuple(Role(f"worker {rank}", (rank,), (), (Lane("compute"),)) for rank in (0, 1))
    replies = [reply_of(0, [[0, 1.0], [1, 2.0]]), reply_of(1, [[0, 1.0], [1, 9.0]], back=1)]
    assert result_of(Program("p", roles, (), (), 8), replies, 0).timeline.step_seconds == 1.0


def test_spans_stand_by_rank_and_lane_and_then_in_time() -> None:
    at = [(1, "a", 0.0), (0, "b", 1.0), (0, "a", 4.0), (0, "b", 0.0), (0, "a", 2.0)]
    spans = [asdict(Span(rank, lane, "F", "Compute", 0, start, start + 1.0)) for rank, lane, start in at]
    found = alone(reply_of(0, [[0, 1.0]], spans=spans)).timeline.spans
    assert [(span.rank, span.lane, span.start) for span in found] == sorted(at)


@pytest.mark.parametrize(("discard", "seconds"), [(0, 0.5), (4, 0.5), (7, 0.5), (8, 0.4)])
def test_of_workers_at_their_own_pace_whole_rounds_are_left_out(discard: int, seconds: float) -> None:
    """At least one. Until the first one has ended all, two workers, whose rounds are worth two steps, do three rounds
    and one in four seconds, or two and a half of one in two."""
    graph, cluster = two_layers(), cluster_of(3)
    program = last_program(graph, call("downpour(push=2,fetch=2)", graph, cluster), cluster)
    assert (program.steps, shares_of(program, program.roles[0])) == (4, {0: 2.0, 1: 2.0})
    rounds = [2.0, 4.0, 5.0, 6.0], [4.0, 8.0, 12.0], []
    replies = [reply_of(rank, [[4 * n + 3, end] for n, end in enumerate(ends)]) for rank, ends in enumerate(rounds)]
    assert result_of(program, replies, discard).timeline.step_seconds == pytest.approx(seconds)
