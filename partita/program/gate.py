"""Gates: instructions that start only together with others, whichever rounds these are in.

need 2, within 3      waits    a   b | a   c | a   b   c | ...      the third time it waits for c although a and b are
                      opens for   a b     a c     a b c             there: c must not be left out three times in a row
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gate:
    """Instructions of a rank with the same gate are its members. An instance whose predecessors are done waits at the
    gate. The gate opens for all waiting members once at least `need` of them wait (0: all; fewer if fewer have
    instances left), unless a member with instances left would be left out for the `within`-th time in a row (0: no
    limit)."""

    name: str
    need: int = 0
    within: int = 0


def opens(gate: Gate, ages: dict[str, int], coming: Collection[str], waiting: Collection[str]) -> bool:
    """Whether the gate opens for the members that are `waiting`, given the members `coming` that have instances left.
    If it opens, updates `ages`: how often in a row each member was left out."""
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
