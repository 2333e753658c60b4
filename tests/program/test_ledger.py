"""How far two servers' ledgers are apart."""

from __future__ import annotations

import pytest

from partita.program.ledger import Merge, compared


def of_staleness(*each: int) -> list[Merge]:
    """One worker's turns, whose contributions are as stale as `each` says, time and again."""
    return [
        Merge("b", 0, turn, turn + 100, turn + 100 + each[turn % len(each)], 1) for turn in range(5 + 10 * len(each))
    ]


@pytest.mark.parametrize(
    ("one", "other", "apart"), [((1,), (1,), 0.0), ((0,), (3,), 1.0), ((0, 1), (0, 1), 0.0), ((0, 1), (1,), 0.5)]
)
def test_ledgers_are_as_far_apart_as_their_distributions(
    one: tuple[int, ...], other: tuple[int, ...], apart: float
) -> None:
    """Total variation: 0 for the same, 1 where nothing is in common; the same both ways."""
    found = compared(of_staleness(*one), of_staleness(*other))
    assert found is not None
    assert found == pytest.approx((sum(one) / len(one), sum(other) / len(other), apart), abs=0.06)
    back = compared(of_staleness(*other), of_staleness(*one))
    assert back is not None
    assert back[2] == pytest.approx(found[2])
