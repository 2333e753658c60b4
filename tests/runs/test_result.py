from __future__ import annotations

from typing import Any

from partita.program.program import Lane, Program, Role
from partita.runs.result import result_of


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
