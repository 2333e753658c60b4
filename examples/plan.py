"""Which plan is best here: every recipe with every setting of its knobs, simulated and ranked.

    python examples/plan.py [TASK [CLUSTER]]
"""

from __future__ import annotations

import sys

from rich.console import Console

import partita as pt
from partita.plan.text import write_plan
from partita.report.table import search_table


def main(task: str = "convnet-8m", place: str = "lab-4x1g") -> None:
    """Rank the exact plans, then all; print the best one as the text that `--plan FILE` reads."""
    console, graph, cluster = Console(), pt.capture(task), pt.Cluster.load(place)
    for allow in ("exact", "any"):
        found = pt.search(graph, cluster, allow=allow, top=5)
        console.print(f"{task} on {place}, class {allow}, searched in {found.search_seconds:.1f} s")
        console.print(search_table(found))
        console.print(found.explanation, "\n")
    console.print(write_plan(found.best), markup=False)


if __name__ == "__main__":
    main(*sys.argv[1:3])
