"""Lower bounds: what a point of the grid takes and holds at the least on the event clock.

`rough_bounds`   wherever it is cut
`step_bounds`    seconds of a step, and
`peak_bounds`    bytes of the fullest device, where it is really cut
"""

from __future__ import annotations

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.searches.peak_bounds import PeakBounds
from partita.searches.space import Space
from partita.searches.stage_costs import StageCosts
from partita.searches.step_bounds import StepBounds


class LowerBounds:
    """The bounds of a grid's points on data sheets' costs, calibrated where some are `measured`, in seconds of a step
    and bytes of the fullest device; lives for one search."""

    def __init__(self, graph: Graph, cluster: Cluster, measured: Costs | None = None) -> None:
        self.places = StageCosts(graph, cluster, measured)
        self.steps, self.peaks = StepBounds(self.places), PeakBounds(self.places)

    def lowered_alike(self, one: Space) -> tuple[int, ...]:
        """A key that points, each a space of its own, have in common if they are lowered to the same Program: those
        whose buckets differ only beyond what any stage has alone, or what stages share."""
        pipes = next(found for _, _, found in self.places.pipes(one))
        shared, _ = self.places.tied(pipes)
        most = max(float((pipes.state - shared).max()), float(shared.sum()))
        return *one.shapes[0].tolist(), min(int(one.buckets[0]), int(most))
