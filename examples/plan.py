"""Which plan is best here: a grid of plans priced by formula, the best of them simulated and ranked; where this machine
can stand for the cluster, the best of these once more with measured costs.

python examples/plan.py [TASK [CLUSTER [exact|lossy|delayed|any]]]
"""

from __future__ import annotations

import sys

from rich.console import Console

import partita as pt
from partita.plan.text import write_plan
from partita.report.progress import telling
from partita.report.table import search_table


def main(task: str = "digits-cnn", place: str = "lab-4x1g", allow: str = "exact") -> None:
    """Rank what `allow` lets through; print the best plan as the text that `--plan FILE` reads."""
    console = Console(width=160)
    with telling() as tell:  # costs of a lab that is not this machine's own take minutes to measure
        found = pt.search(pt.capture(task), pt.Cluster.load(place), task=task, allow=allow, top=5, tell=tell)
    console.print(search_table(found))
    console.print(f"{found.explanation}\nsearched in {found.search_seconds:.1f} s, costs: {found.costs}\n")
    console.print(write_plan(found.best), markup=False)


if __name__ == "__main__":
    main(*sys.argv[1:4])
