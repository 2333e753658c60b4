"""Who may die, who is started again, and who is given up."""

from __future__ import annotations

from partita.lab.spares import Spares


def test_one_that_dies_is_started_again_so_many_times() -> None:
    spares = Spares([1, 2], ({"verb": "open"}, {"verb": "run"}), times=2)
    assert [bool(spares.dies(1)) for _ in range(3)] == [True, True, False]
    assert spares.away == {1}


def test_one_that_was_given_up_is_not_started_again_where_it_dies_after_all() -> None:
    spares = Spares([1], ({"verb": "open"},), times=3)
    assert spares.dies(1)
    assert spares.gives_up(1)
    assert not spares.dies(1)
    assert spares.away == {1}
