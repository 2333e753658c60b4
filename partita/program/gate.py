"""Gates: instances that go on in company only, whoever's round it is.

need 2, within 3      comes    a   b | a   c | a   b   c | ...      at the third the gate waits for c although a and b
                      opens for   a b     a c     a b c              are there: c must not be left out a third time
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gate:
    """Instructions of a rank with the same gate are its members. An instance whose predecessors are done waits at it,
    until it opens for all who wait: once `need` members do (0: all), or as many as have instances left, and nobody
    who has any is left out for the `within`-th time in a row (0: no such bound)."""

    name: str
    need: int = 0
    within: int = 0


def opens(gate: Gate, ages: dict[str, int], coming: Collection[str], waiting: Collection[str]) -> bool:
    """Whether it opens for the `waiting` among those who are still `coming`; `ages`, the caller's, then say how often
    in a row each was left out."""
    absent = [name for name in coming if name not in waiting]
    enough = len(waiting) >= min(gate.need or len(coming), len(coming))
    overdue = gate.within > 0 and any(ages.get(name, 0) + 1 >= gate.within for name in absent)
    if not waiting or not enough or overdue:
        return False
    for name in waiting:
        ages[name] = 0
    for name in absent:
        ages[name] = ages.get(name, 0) + 1
    return True
