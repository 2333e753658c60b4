"""Drags: how many times as long each rank takes over the same operators.

Devices of one kind stand on cores that are not equally fast: a core's twin, or a neighbour of the whole machine, takes
some of its cache and its memory's bandwidth, now of this one and a minute later of that one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from partita.units import Seconds


def pooled(
    replies: Sequence[Mapping[str, Seconds]], known: Mapping[str, Seconds]
) -> tuple[dict[str, Seconds], tuple[float, ...]]:
    """Core-seconds of the operators that are not known, and each rank's drag: of the sum, as short operators change
    twice as much as those that matter.

    Operators that all ranks have timed tell how much longer a rank takes than what is known, or than the median of the
    ranks; what only one has timed is divided by that.
    """
    shared = [name for name in replies[0] if all(name in reply for reply in replies)]
    usual = {name: known.get(name, median(reply[name] for reply in replies)) for name in shared}
    whole = sum(usual.values())
    drags = tuple(sum(reply[name] for name in shared) / whole for reply in replies)
    even = [{name: value / drag for name, value in reply.items()} for reply, drag in zip(replies, drags, strict=True)]
    names = dict.fromkeys(name for reply in even for name in reply if name not in known)
    return {name: median(reply[name] for reply in even if name in reply) for name in names}, drags


def means(first: Sequence[float], second: Sequence[float]) -> tuple[float, ...]:
    """Of each rank's two drags."""
    return tuple((a + b) / 2 for a, b in zip(first, second, strict=True))
