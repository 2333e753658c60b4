"""Spans made small for a page: a predicted and a measured timeline on one axis, as whole numbers, as many as fit.

{"unit": seconds of one tick, "lanes": [[rank, lane]], "names": [[name, kind, part]], "last": the last round,
 "spans": [lane, name, round, start, length, lane, name, ...]}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from partita.program.breakdown import part_of
from partita.program.timeline import Span, Timeline
from partita.units import Seconds

TICKS: Final = 1_000_000  # that an axis is divided into


@dataclass(frozen=True, slots=True)
class Thinned:
    """The spans that are shown of a timeline, and the words that say which, "" where it is all of them."""

    spans: tuple[Span, ...]
    words: str = ""


def thinned(timelines: Sequence[Timeline], most: int) -> list[Thinned]:
    """At most `most` spans in all; small timelines leave their share to large ones."""
    found: dict[int, Thinned] = {}
    left, places = most, sorted(range(len(timelines)), key=lambda place: len(timelines[place].spans))
    for waiting, place in zip(range(len(places), 0, -1), places, strict=True):
        found[place] = _thin(timelines[place], left // waiting)
        left -= len(found[place].spans)
    return [found[place] for place in range(len(timelines))]


def _thin(timeline: Timeline, most: int) -> Thinned:
    """The last round if all are too many; of it the first ranks; of the first rank its longest spans."""
    spans = tuple(timeline.spans)
    if len(spans) <= most:
        return Thinned(spans)
    last = max(span.round for span in spans)
    shown = tuple(span for span in spans if span.round == last)
    words = "its last round"
    if len(shown) > most:
        ranks = sorted({span.rank for span in shown})
        counts = Counter(span.rank for span in shown)
        kept: list[int] = []
        total = 0
        for rank in ranks:
            total += counts[rank]
            if total > most and kept:
                break
            kept.append(rank)
        shown = tuple(span for span in shown if span.rank in set(kept))
        words += f" on {len(kept)} of {len(ranks)} ranks" if len(ranks) > 1 else ""
    if len(shown) > most:
        shown = tuple(sorted(shown, key=lambda span: span.start - span.end)[:most])
        words += ", its longest instructions"
    name = f"{timeline.plan}, {timeline.origin}"
    return Thinned(shown, f"{name}: {words} ({len(shown):,} of {len(spans):,} instructions).")


def packed(sides: Sequence[tuple[Span, ...]]) -> list[dict[str, Any]]:
    """Each side's spans; time 0 is where computing begins in the first round that all sides have."""
    full = [side for side in sides if side]
    if not full:
        return [_pack((), 0.0, 1.0) for _ in sides]
    kept = min(len({span.round for span in side}) for side in full)
    rounds = [_last(side) - kept + 1 for side in sides]
    common = [tuple(span for span in side if span.round >= r) for side, r in zip(sides, rounds, strict=True)]
    first = [_begin(side, r) for side, r in zip(common, rounds, strict=True)]
    length = max(span.end - zero for side, zero in zip(common, first, strict=True) for span in side)
    return [_pack(side, zero, (length or 1.0) / TICKS) for side, zero in zip(common, first, strict=True)]


def _begin(side: tuple[Span, ...], first: int) -> Seconds:
    """Loading and messages may run far ahead, so the round's first computing counts, if it has any."""
    mine = [span for span in side if span.round == first]
    computing = [span.start for span in mine if span.kind == "Compute"]
    return min(computing or (span.start for span in mine), default=0.0)


def _last(side: tuple[Span, ...]) -> int:
    return max((span.round for span in side), default=0)


def _pack(spans: tuple[Span, ...], zero: Seconds, unit: Seconds) -> dict[str, Any]:
    lanes = {key: place for place, key in enumerate(sorted({(span.rank, span.lane) for span in spans}))}
    names = {key: place for place, key in enumerate(dict.fromkeys((span.name, span.kind) for span in spans))}
    flat: list[int] = []
    for span in sorted(spans, key=lambda span: (span.rank, span.lane, span.start)):
        flat += [
            lanes[span.rank, span.lane], names[span.name, span.kind], span.round,
            round((span.start - zero) / unit), round((span.end - span.start) / unit),
        ]  # fmt: skip
    return {
        "unit": unit, "zero": zero, "last": _last(spans), "lanes": [list(key) for key in lanes],
        "names": [[*key, part_of(*key)] for key in names], "spans": flat,
    }  # fmt: skip
