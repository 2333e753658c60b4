"""How a step's time follows the network: three plans on three clusters, nothing run.

python examples/simulate.py [TASK]
"""

from __future__ import annotations

import sys

import partita as pt
from partita import api
from partita.units import show_seconds

PLANS = ("ddp", "pipe_sgd(staleness=1)", "local_sgd(period=16)")
PLACES = ("lab-4x100m", "lab-4x1g", "lab-4x10g")


def main(task: str = "convnet-8m") -> None:
    """Print the predicted step and how much of it waits for messages."""
    graph = pt.capture(task)
    print(f"{'':24}" + "".join(f"{place:>24}" for place in PLACES))
    for text in PLANS:
        cells = []
        for place in PLACES:
            cluster = pt.Cluster.load(place)
            timeline = pt.simulate(graph, api.plan_of(text, graph, cluster), cluster)
            waiting = timeline.breakdown.exposed_communication / timeline.step_seconds
            cells.append(f"{show_seconds(timeline.step_seconds)}, {waiting:.0%} waiting")
        print(f"{text:24}" + "".join(f"{cell:>24}" for cell in cells))


if __name__ == "__main__":
    main(*sys.argv[1:2])
