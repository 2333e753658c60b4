"""What Partita does, on this machine: five ways of training two real models on an emulated four-device cluster, each
predicted from micro-benchmarks before it runs.

    python examples/demo.py [CLUSTER]
"""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from partita import api
from partita.report.comparison import verdict
from partita.report.page import write_page
from partita.report.progress import telling
from partita.report.table import comparison_table
from partita.report.trace import write_trace

PLANS = ("single", "ddp", "ps_sync", "pipe_sgd", "local_sgd")
TASKS = {"digits-cnn": 40, "bytes-gpt": 24}


def main(place: str = "lab-4x1g") -> None:
    """Compare, print, write a trace and a page for each task."""
    console, out = Console(width=150), Path("runs/demo")
    out.mkdir(parents=True, exist_ok=True)
    for task, steps in TASKS.items():
        with telling() as tell:
            found = api.compare(task, PLANS, api.cluster_of(place), steps=steps, tell=tell)
        console.print(f"\n{task} on {place}, {steps} steps of real data")
        console.print(comparison_table(found))
        console.print(verdict(found))
        row = found.rows[1]
        if row.predicted and row.measured:
            write_trace((row.predicted, row.measured), out / f"{task}.trace.json")
            console.print(
                f"predicted and measured timeline of {row.plan}: {out / task}.trace.json (open in ui.perfetto.dev)"
            )
        write_page(found, out / f"{task}.html")
        console.print(f"report: {out / task}.html")
        for note in found.notes:
            console.print(f"note: {note}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
