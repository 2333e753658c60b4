"""A round of a pipe as its schedule orders it: the longest way through the passes of all places.

place 0   F0 F1 .......... B0 P B1 P     a pass begins when what its rank does before it is over, gradients are packed
             \\         /                 (P) and weights are gathered; and when the message from the stage before, or
place 1       F0 B0 P F1 BPB P           on the way back from the stage behind, is there. The last microbatch's backward
                                         is cut where buckets are complete, and what is behind that waits for packs too
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from partita.lowering.schedules import Row
from partita.units import Seconds

Each = Sequence[Seconds]


@dataclass(frozen=True)
class StageTimes:
    """Seconds of one point of the grid. Each sequence has an entry for every stage; "F", "B", "W" are kinds of passes.

    took         of a pass of this kind
    packs, adds  of packing the gradients that it completes: of the first microbatch, and of the others
    early        of packing inside backward of microbatch `last`, which is cut where buckets are complete
    there, back  of a message to the next stage, and of one back from it; -inf where nobody waits for it
    """

    took: dict[str, Each]
    packs: dict[str, Each]
    adds: dict[str, Each]
    early: Each
    last: int
    there: Each
    back: Each


def round_of(rows: Sequence[Row], waits: Sequence[Each], times: StageTimes, first: int) -> tuple[Seconds, Seconds]:
    """When the last backward pass of place `first` begins at the least, and when all of its round is over, after its
    first pass began. `waits` has for each pass of a place's row how long its rank computes nothing before it."""
    places, free, at, begun = len(rows), [-inf] * len(rows), [0] * len(rows), 0.0
    free[first] = 0.0
    ends: dict[tuple[str, int, int], Seconds] = {}
    line = list(reversed(range(places)))
    while line:
        place = line.pop()
        row = rows[place]
        while at[place] < len(row):
            one = row[at[place]]
            kind, stage, ready = one.kind, one.chunk * places + place, -inf
            step = {"F": -1, "B": 1}.get(kind, 0)  # to the stage that it waits for
            transfers = times.there if step < 0 else times.back
            edge = stage - (step < 0)
            if step and 0 <= edge < len(transfers) and transfers[edge] > -inf:
                source = ends.get((kind, stage + step, one.microbatch))
                if source is None:
                    break
                ready = source + transfers[edge]
            start = max(free[place] + waits[place][at[place]], ready)
            early = times.early[stage] if kind == "B" and one.microbatch == times.last else 0.0
            ends[kind, stage, one.microbatch] = start + times.took[kind][stage] + early
            behind = times.adds if one.microbatch else times.packs
            free[place] = start + times.took[kind][stage] + behind[kind][stage]
            if place == first and kind == "B":
                begun = start
            if step:
                line.append((place - step) % places)
            at[place] += 1
    return begun, free[first]
