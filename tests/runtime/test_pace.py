"""What a rank's own work takes is told by whole rounds."""

from __future__ import annotations

from partita.runtime.pace import Pace


def noted(pace: Pace, round: int, **seconds: float) -> None:
    for name, each in seconds.items():
        pace.note("Compute", round, name, each)


def test_the_best_whole_round_counts_not_the_best_of_each_instruction() -> None:
    pace = Pace()
    noted(pace, 0, F=2.0, B=1.0)
    noted(pace, 1, F=1.0, B=9.0)
    pace.note("Load", 0, "L", 5.0)
    noted(pace, 2, F=1.0)
    assert pace.taken() == {"F": 2.0, "B": 1.0}
    noted(pace, 2, B=1.5)
    assert pace.last_taken() == {"F": 1.0, "B": 1.5, "L": 5.0}


def test_a_round_with_something_left_out_does_not_count() -> None:
    pace = Pace()
    noted(pace, 0, F=2.0, B=2.0)
    noted(pace, 1, F=1.0)
    noted(pace, 2, F=3.0, B=3.0)
    assert pace.last_taken() == {"F": 2.0, "B": 2.0}
    noted(pace, 3, F=1.0)
    assert pace.last_taken() == {}


def test_a_round_that_had_more_to_do_counts_before_quicker_ones_that_had_less() -> None:
    """As where a run begins with what is not yet in flight."""
    pace = Pace()
    noted(pace, 0, F=1.0)
    noted(pace, 1, F=2.0, B=2.0)
    noted(pace, 2, F=3.0, B=3.0)
    assert pace.last_taken() == {"F": 2.0, "B": 2.0}
