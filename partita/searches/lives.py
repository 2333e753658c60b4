"""When the values of a step are alive, and what they take."""

from __future__ import annotations

from partita.cost.lifetimes import Lifetimes, lifetimes_of
from partita.graph.graph import Graph


def lives_of(step: Graph, size: int) -> Lifetimes:
    """Those for `size` samples."""
    return lifetimes_of(step, size)
