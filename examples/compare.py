"""Prediction against measurement: plans are predicted from micro-benchmarks, then run.

python examples/compare.py [CLUSTER]
"""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

import partita as pt
from partita.report.comparison import verdict
from partita.report.page import write_page
from partita.report.table import comparison_table

PLANS = ("ddp", "pipe_sgd(staleness=1)", "local_sgd(period=4)")


def main(place: str = "local:2") -> None:
    """Print the comparison and write it as a page."""
    found = pt.compare("digits-cnn", PLANS, pt.Cluster.load(place), steps=20)
    console, page = Console(width=160), Path("runs/compare.html")
    console.print(comparison_table(found))
    console.print(verdict(found))
    for note in found.notes:
        console.print(note)
    page.parent.mkdir(exist_ok=True)
    write_page(found, page)
    console.print(f"report: {page}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
