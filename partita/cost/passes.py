"""Passes over the tensors of a bucket, and what they cost."""

from __future__ import annotations

from partita.cost.touch import Touch
from partita.program.instruction import Mix
from partita.program.layout import Bucket
from partita.units import Seconds


def over(bucket: Bucket, touch: Touch) -> Seconds:
    """Core-seconds of a pass over all pieces of a bucket."""
    return touch.of(bucket.elements, len(bucket.pieces))


def passes_of(mix: Mix) -> int:
    """Passes over a tensor: one for each term, but none for 1 times what the result holds already."""
    return len(mix.terms) - any(t.space is mix.into and not t.peer and set(t.factor) == {1.0} for t in mix.terms)


def owned(bucket: Bucket, touch: Touch) -> Seconds:
    """Core-seconds of a pass over the part of a bucket that one rank owns. A piece that crosses the edge between two
    parts is a tensor of both."""
    ranks = len(bucket.shares.edges) - 1 if bucket.shares else 1
    return touch.of(bucket.owned, (len(bucket.pieces) + ranks - 1) / ranks)
