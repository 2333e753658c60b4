"""When the values of a step are alive, and what they take."""

from __future__ import annotations

from dataclasses import replace

from partita.cost.tides import Tide, tide_of
from partita.graph.graph import Graph


def lives_of(step: Graph, size: int) -> Tide:
    """Those for `size` samples, worked out once; where and how long they live is the same for any number."""
    return step.once(("tide", size), lambda: tide_of(step, 1) if size == 1 else replace(lives_of(step, 1), batch=size))
