"""Checks of what a command was given, before anything slow is loaded. It imports other rooms only when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def given(cluster: str, *plans: str, files: tuple[Path | None, ...] = (), folder: Path | None = None) -> Any:
    """The Cluster, once the plans' texts are read and `files` and `folder` can be written: bad input is refused before
    anything slow is loaded."""
    from partita.cluster.text import load_cluster
    from partita.recipes.reading import read_text
    from partita.report.files import check_folder, check_writable

    check_writable(*files)
    check_folder(folder)
    for plan in plans:
        read_text(plan)
    return load_cluster(cluster)
