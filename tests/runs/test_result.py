from __future__ import annotations

from typing import Any

from partita.program.program import Lane, Program, Role
from partita.runs.result import result_of


def test_a_step_within_a_round_ends_with_its_round() -> None:
    program = Program("p", (Role("worker", (0,), (), (Lane("compute"),)),), (), (), 8, steps=2)
    reply: dict[str, Any] = {
        "rank": 0, "ends": [[1, 0.5], [3, 1.0]], "losses": [[0, 4.0, 0.0], [1, 3.0, 0.0], [2, 2.0, 0.0], [3, 1.0, 0.0]],
        "spans": [], "resident": 1, "sent": 0, "cores": [[1, 0.5], [3, 1.0]], "final_loss": 1.0,
        "weights": "", "stopped": None, "since": 0, "begun": 0.0, "idle": 0.0, "merges": [],
    }  # fmt: skip
    found = result_of(program, [reply], 2)
    assert found.loss == ((0, 0.5, 4.0), (1, 0.5, 3.0), (2, 1.0, 2.0), (3, 1.0, 1.0))
