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


def test_what_has_begun_goes_on_in_every_lane() -> None:
    """Steps 0 to 2 are one round: who asks for it later is let in, whatever has been held or ended meanwhile."""
    brake = Brake()
    assert brake.passes(0, 2)
    assert brake.hold() == 2
    assert brake.passes(0, 2)
    brake.release(2)
    assert brake.passes(0, 2)
    assert not brake.passes(2, 4)


def test_a_held_brake_lets_whole_rounds_begin_up_to_the_latest_step_that_was_said() -> None:
    brake = Brake()
    brake.hold()
    brake.lift(5)
    brake.lift(3)
    assert brake.passes(3, 5)
    assert not brake.passes(4, 6)
    brake.resume()
    assert brake.passes(4, 6)
