"""Spans kept as columns read like the tuple of Spans that they stand for."""

from __future__ import annotations

import numpy as np
import pytest

from partita.program.instruction import Combine, Instruction, Update
from partita.program.program import Lane, Role
from partita.program.spans import Spans, Times
from partita.program.timeline import Span

BODY = (Instruction("U", Update("b"), "compute"), Instruction("C", Combine("b", (0,)), "aside"))
LANES = (Lane("compute"), Lane("aside"))


def spans() -> Spans:
    """Ranks 0 and 2 alike, 3 of another kind in the same role, 1 in a role of its own; two rounds, 5 and 6."""
    start = np.arange(8.0).reshape(2, 2, 2)
    many = Times(Role("many", (0, 2, 3), BODY, LANES), 5, start, start + 0.5, np.array([0, 0, 1]))
    one = Times(
        Role("one", (1,), BODY[:1], LANES),
        5,
        np.array([[[9.0]], [[8.0]]]),
        np.full((2, 1, 1), 9.5),
        np.zeros(1, np.intp),
    )
    return Spans([many, one])


def test_they_read_like_a_tuple() -> None:
    written = (
        *(Span(0, *rest) for rest in ALIKE),
        Span(1, "compute", "U", "Update", 6, 8.0, 9.5),
        Span(1, "compute", "U", "Update", 5, 9.0, 9.5),
        *(Span(2, *rest) for rest in ALIKE),
        Span(3, "aside", "C", "Combine", 5, 3.0, 3.5),
        Span(3, "aside", "C", "Combine", 6, 7.0, 7.5),
        Span(3, "compute", "U", "Update", 5, 1.0, 1.5),
        Span(3, "compute", "U", "Update", 6, 5.0, 5.5),
    )
    found = spans()
    assert tuple(found) == written
    assert found == written
    assert found == spans()
    assert found != written[:-1]
    assert len(found) == len(written)
    assert [found[i] for i in range(-14, 14)] == [written[i] for i in range(-14, 14)]
    assert found[3:9:2] == written[3:9:2]
    assert found.of(1) == written[4:6]
    assert found.of(7) == ()
    with pytest.raises(IndexError):
        found[14]


ALIKE = (
    ("aside", "C", "Combine", 5, 2.0, 2.5),
    ("aside", "C", "Combine", 6, 6.0, 6.5),
    ("compute", "U", "Update", 5, 0.0, 0.5),
    ("compute", "U", "Update", 6, 4.0, 4.5),
)
