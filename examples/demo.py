"""What Partita does, on this machine: five ways of training two real models on an emulated four-device cluster, each
predicted from micro-benchmarks before it runs.

    python examples/demo.py [CLUSTER]
"""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from partita import api
from partita.report.comparison import Comparison, verdict
from partita.report.page import write_page
from partita.report.progress import telling
from partita.report.record import write_record
from partita.report.table import comparison_table
from partita.report.trace import write_trace

PLANS = ("single", "ddp", "ps_sync", "pipe_sgd", "local_sgd")
TASKS = {"digits-cnn": 40, "bytes-gpt": 12}


def main(place: str = "lab-4x1g") -> None:
    """Compare and print each task; write its result, a trace and a page that shows all of it."""
    console, out = Console(width=150), Path("runs/demo")
    out.mkdir(parents=True, exist_ok=True)
    for task, steps in TASKS.items():
        with telling() as tell:
            found = api.compare(task, PLANS, api.cluster_of(place), steps=steps, tell=tell)
        console.print(f"\n{task} on {place}, {steps} steps of real data")
        console.print(comparison_table(found))
        console.print(verdict(found))
        keep(found, out)
        for note in found.notes:
            console.print(f"note: {note}")
    console.print("\nLook at them in a browser: tables, losses, every instruction predicted over measured.")
    for task in TASKS:
        console.print(f"report: {(out / task).resolve()}.html", soft_wrap=True)


def keep(found: Comparison, out: Path) -> None:
    """The result as numbers, its second plan as a trace for ui.perfetto.dev, and the page."""
    write_record(found, out / f"{found.task}.json")
    row = found.rows[1]
    write_trace([side for side in (row.predicted, row.measured) if side], out / f"{found.task}.trace.json")
    others = {task: f"{task}.html" for task in TASKS if task != found.task}
    write_page(found, out / f"{found.task}.html", others)


if __name__ == "__main__":
    main(*sys.argv[1:2])
