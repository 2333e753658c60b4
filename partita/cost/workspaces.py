"""What operators take of a card while they run: no graph knows, since libraries choose among algorithms by shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from partita.cost.memory_curve import ByteSeries
from partita.graph.graph import Graph
from partita.graph.kinds import kinds_of
from partita.graph.signature import signature
from partita.units import Bytes


@dataclass(frozen=True)
class Workspaces:
    """`operators` maps signatures to the bytes beyond what they make, at their highest while they run; `kept` are those
    that libraries keep from their first call on, such as cuBLAS's workspace."""

    operators: Mapping[str, Bytes] = field(default_factory=dict)
    kept: Bytes = 0

    def of(self, graph: Graph, batch: int) -> ByteSeries:
        """Those of each operator for `batch` samples, 0 where they were not measured; shape [operators]."""
        if not self.operators:
            return np.zeros(len(graph.operators), np.int64)
        kinds = kinds_of(graph)
        each = [self.operators.get(signature(operator, concrete), 0) for operator, concrete in kinds.at(batch)]
        return np.array(each, np.int64)[list(kinds.number)]


NONE: Final = Workspaces()
