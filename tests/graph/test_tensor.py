"""Numbers that follow the number of samples."""

from __future__ import annotations

from math import inf

import pytest

from partita.graph.tensor import Ratio


@pytest.mark.parametrize(
    ("law", "batch", "number"),
    [
        (Ratio(3.0, 1), 4, 12.0),
        (Ratio(3.0, -1), 4, 0.75),
        (Ratio(2.0, -1, -1.0), 5, 0.5),
        (Ratio(2.0, -1, -1.0), 1, inf),
        (Ratio(-2.0, -1, -1.0), 1, -inf),
    ],
)
def test_a_ratio_of_a_number_of_samples(law: Ratio, batch: int, number: float) -> None:
    assert law.at(batch) == number
