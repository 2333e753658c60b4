"""The store at which the ranks of a run met, which rank 0 keeps."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from partita.units import Seconds


def line_to_store(run: int, timeout: Seconds) -> Any:
    """A line of one's own to what the ranks say in a run, so that nobody waits for another's question."""
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(*place, None, False, timedelta(seconds=timeout))  # type: ignore[attr-defined]
    return prefixed(store, f"run{run}")


def prefixed(store: Any, name: str) -> Any:
    """A part of a store, with names of its own."""
    return dist.PrefixStore(name, store)  # type: ignore[attr-defined]
