"""The store at which the ranks of a run meet; rank 0 keeps it."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from partita.units import Seconds


def line_to_store(run: int, timeout: Seconds) -> Any:
    """A connection of one's own to the store of a run, so that threads do not wait for each other's requests."""
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(*place, None, False, timedelta(seconds=timeout))  # type: ignore[attr-defined]
    return prefixed(store, f"run{run}")


def prefixed(store: Any, name: str) -> Any:
    """A namespace of a store."""
    return dist.PrefixStore(name, store)  # type: ignore[attr-defined]
