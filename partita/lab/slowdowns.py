"""Slowdowns: how many times as long each rank takes over the same operators.

Devices of one kind are not equally fast at every moment: a hyperthread's sibling, or another guest of the host, takes
some of a core's cache and memory bandwidth, and a minute later some of another core's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from partita.probes.stretches import PLACE
from partita.units import Seconds


def pooled(
    replies: Sequence[Mapping[str, Any]], known: Mapping[str, Seconds]
) -> tuple[dict[str, Seconds], dict[str, Seconds], tuple[float, ...]]:
    """(core-seconds of the operators, as `known` or as timed, those in places that all ranks have timed, each rank's
    slowdown), from each rank's core-seconds of `operators` and in `places`.

    A rank's slowdown is the sum of its times in places that all ranks have timed, divided by the sum of the known
    times, or of the medians over ranks; sums, because times of short operators vary twice as much. Times of operators
    are divided by the slowdowns of the ranks that have timed them. Where such a place is not known, nothing is, for
    nobody can tell how fast the host was then.
    """
    first, *others = (reply["places"] for reply in replies)
    shared = [name for name in first if all(name in other for other in others)]
    known = known if all(name in known for name in shared) else {}
    usual = {name: known.get(name, median(reply["places"][name] for reply in replies)) for name in shared}
    whole = sum(usual.values())
    slowdowns = tuple(sum(reply["places"][name] for name in shared) / whole for reply in replies)
    even = [
        {name: value / slowdown for name, value in reply["operators"].items()}
        for reply, slowdown in zip(replies, slowdowns, strict=True)
    ]
    names = dict.fromkeys(name for reply in even for name in reply if name not in known)
    fresh = {name: median(reply[name] for reply in even if name in reply) for name in names}
    kept = {name: seconds for name, seconds in known.items() if not name.startswith(PLACE)}
    return kept | fresh, usual, slowdowns


def of_all(slowdowns: Sequence[float], size: int) -> tuple[float, ...]:
    """Of so many ranks; those that were not timed are as slow as the others."""
    return (*slowdowns, *[fmean(slowdowns)] * (size - len(slowdowns)))


def as_then(
    operators: Mapping[str, Seconds], places: Mapping[str, Seconds], times: Sequence[Sequence[float]]
) -> tuple[dict[str, Seconds], dict[str, Seconds], tuple[tuple[float, ...], ...]]:
    """Operators, what they take in places, and each rank's slowdowns, measured at several `times`, as operators were on
    the average then: copies, updates and links are measured then too, while operators may be known from another day,
    when the host was slower. What is timed in places later is slower or faster than that."""
    level = fmean(steady(times))
    scaled, then = ({name: seconds * level for name, seconds in each.items()} for each in (operators, places))
    return scaled, then, tuple(tuple(own / level for own in ranks) for ranks in times)


def steady(times: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Each rank's slowdown, from those measured at several `times`: the median of what all ranks are slower by, since a
    neighbour may work for a second, times that of what the rank is slower by than the others: for seconds now one core
    is quicker and now another, and all ranks together tell the host's speed better than one of them."""
    levels = [fmean(ranks) for ranks in times]
    ratios = ([own / level for own, level in zip(rank, levels, strict=True)] for rank in zip(*times, strict=True))
    return tuple(median(levels) * median(own) for own in ratios)
