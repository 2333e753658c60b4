"""Where a run stops, and what may begin before."""

from __future__ import annotations

from partita.runtime.brake import Brake, RoundWait


def test_rounds_before_the_end_wait_while_a_rank_is_let_in() -> None:
    """Steps 3 and 4 are still to come where the others go on to 5."""
    brake = Brake(begun=3)
    brake.hold()  # to let a rank in
    brake.hold()  # to stop
    brake.release(5)
    before, after = RoundWait(brake, 3, 4), RoundWait(brake, 5, 6)
    assert (before.ready(), brake.over(3)) == (False, False)
    assert (after.ready(), brake.over(5), brake.passes(5, 6)) == (True, True, False)
    brake.resume()
    assert before.ready()
    assert brake.passes(3, 4)
