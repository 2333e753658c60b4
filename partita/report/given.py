"""What a command was given, read before anything slow is loaded. Loads the rooms that read it only when called."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def given(cluster: str, *plans: str, files: tuple[Path | None, ...] = ()) -> Any:
    """The Cluster, once the plans' texts are read and `files` can be written: bad input is refused before anything
    slow is loaded."""
    from partita.cluster.text import load_cluster
    from partita.recipes.reading import read_text
    from partita.report.files import check_writable

    check_writable(*files)
    for plan in plans:
        read_text(plan)
    return load_cluster(cluster)
