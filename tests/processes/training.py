"""The processes that a launcher trains with."""

from __future__ import annotations

import psutil


def workers_of(launcher: int) -> dict[int, psutil.Process]:
    """The workers below a launcher, by rank."""
    found = psutil.Process(launcher).children(recursive=True)
    ranks = ((process.environ().get("RANK", "").strip(), process) for process in found)
    return {int(rank): process for rank, process in ranks if rank}
