"""The README's picture of a real result: predicted over measured steps of one plan, from a run that was kept.

    make demo && .venv/bin/python docs/picture.py runs/demo/digits-cnn.json ddp docs/ddp.svg

`partita compare ... --out DIR` keeps a run too; give DIR in the place of the JSON file.
"""

from __future__ import annotations

import sys
from pathlib import Path

from partita.report.files import write_file
from partita.report.record import read_record
from partita.report.svg import timeline_svg


def main(run: str, plan: str, picture: str) -> None:
    """Draw the row of `plan`."""
    rows = {row.plan: row for row in read_record(Path(run)).rows}
    if plan not in rows:
        sys.exit(f"{run} has no plan {plan!r}; it has {', '.join(rows)}")
    write_file(Path(picture), timeline_svg(rows[plan]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:4])
