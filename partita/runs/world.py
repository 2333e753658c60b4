"""How the ranks of a run meet: at a store that rank 0 or torchrun's agent keeps."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from partita.errors import RunError
from partita.runs.listener import listening
from partita.runtime.device import GLOO
from partita.telling import Tell, quiet
from partita.units import Seconds


def join_world(rank: int, world: int, timeout: Seconds, backend: str = GLOO, *, note: Tell = quiet) -> None:
    """Meet the other ranks, as torchrun's environment variables say. Raises RunError with what to check, OptionError if
    this process may not listen at the address, or another one does.

    If torchrun's agent does not keep the store, rank 0 does, on the socket that it inherits as LISTENER names, or
    else listening at MASTER_ADDR only. A TCPStore by itself listens on all interfaces, of which it tells by `note`.
    """
    place = os.environ.get("MASTER_ADDR", ""), int(os.environ.get("MASTER_PORT", "0"))
    patience, kept = timedelta(seconds=timeout), os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    listen = listening(place, note) if rank == 0 and not kept else {}
    try:
        store = None if kept else _store(timeout, *place, world, rank == 0, patience, use_libuv=True, **listen)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=patience)
    except (RuntimeError, ValueError) as error:
        raise RunError(
            f"rank {rank} could not meet the others at {place[0]}:{place[1]} ({' '.join(str(error).split())[:200]}); "
            "check MASTER_ADDR and MASTER_PORT, and that each RANK from 0 to WORLD_SIZE - 1 was started once",
            rank=rank,
        ) from error


def _store(timeout: Seconds, *place: Any, **more: Any) -> Any:
    """The store at which ranks meet. torch waits without end, deaf to signals, for the answer of a server that is no
    store and says nothing; so another thread waits for it. Raises RuntimeError after connecting and meeting, which may
    take `timeout` each."""
    found: list[Any] = []

    def meet() -> None:
        try:
            found.append(dist.TCPStore(*place, **more))  # type: ignore[attr-defined]
        except (RuntimeError, ValueError) as error:
            found.append(error)

    thread = threading.Thread(target=meet, name="meet", daemon=True)
    thread.start()
    thread.join(2 * timeout)
    if not found:
        raise RuntimeError("what answers there is no store of torch, or says nothing")
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]
