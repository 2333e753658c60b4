"""The order in which weights are best received, from what each operator waits for (TicTac: Hashemi et al., 2019).

receives r0 r1 r2        operators {r0}: 2 s  {r0, r1}: 1 s  {r2}: 3 s     the set is all that it waits for, through
                                                                           whatever stands between

M of a receive are the seconds that it takes, P those of the operators that wait for it alone, M+ the least that any
operator waits for which needs it and others besides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from partita.arrays import Ints, Reals
from partita.units import Seconds

Needs = Mapping[frozenset[int], Seconds]


def tic(needs: Needs, count: int) -> tuple[int, ...]:
    """The rank of each of `count` receives by M+ alone, a receive counting 1 and an operator nothing (CS-04); who is
    equal has one rank."""
    member = _members(needs, count)
    waits = member.sum(axis=1)
    least = _joint(member, waits, waits.astype(np.float64))
    known = sorted(set(least.tolist()))
    return tuple(known.index(one) for one in least.tolist())


def tac(needs: Needs, transfers: Sequence[Seconds]) -> tuple[int, ...]:
    """The place of each receive in an order by timing (CS-05): again and again the one that comes before all others is
    taken, A before B where min(P_B, M_A) < min(P_A, M_B), or where M+ is less, or else its number."""
    member, seconds = _members(needs, len(transfers)), np.array(list(needs.values()), np.float64)
    takes, left, place = np.array(transfers, np.float64), list(range(len(transfers))), [0] * len(transfers)
    waits, total = member.sum(axis=1), member @ takes
    for turn in range(len(transfers)):
        alone = (member * (waits == 1)[:, None] * seconds[:, None]).sum(axis=0)
        least, best = _joint(member, waits, total), left[0]
        for other in left[1:]:
            ours, theirs = min(alone[best], takes[other]), min(alone[other], takes[best])
            if ours < theirs or (ours == theirs and least[other] < least[best]):
                best = other
        place[best] = turn
        left.remove(best)
        waits, total = waits - member[:, best], total - member[:, best] * takes[best]
        member[:, best] = 0
    return tuple(place)


def _members(needs: Needs, count: int) -> Ints:
    """Whether each operator, a row, waits for each receive."""
    found = np.zeros((len(needs), count), np.int64)
    for row, those in enumerate(needs):
        found[row, list(those)] = 1
    return found


def _joint(member: Ints, waits: Ints, total: Reals) -> Reals:
    """M+ of each receive: the least `total` of an operator that needs it and others; inf where there is none."""
    joint = np.where((member > 0) & (waits > 1)[:, None], total[:, None], np.inf)
    found: Reals = joint.min(axis=0, initial=np.inf)
    return found
