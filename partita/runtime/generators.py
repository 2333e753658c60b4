"""The random generators that a process has one of: torch's, Python's and NumPy's.

A lane may read samples that are drawn at random while another computes with random numbers, from the same generators.
`ALONE` is held by whoever uses them, and by whoever needs a default dtype of its own, which is one of a process too.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch

from partita.runtime.device import CPU
from partita.tracing.draws import seed_for

ALONE: Final = threading.RLock()


def random_states(device: str) -> dict[str, torch.Tensor]:
    """Generator -> its state, as a byte tensor."""
    version, numbers, pending = random.getstate()
    kind: Any = np.random.get_state()
    found = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor([version, *numbers], dtype=torch.int64),
        "python-normal": torch.tensor([] if pending is None else [pending], dtype=torch.float64),
        "numpy": torch.tensor([*kind[1].tolist(), kind[2], kind[3]], dtype=torch.int64),
        "numpy-normal": torch.tensor([kind[4]], dtype=torch.float64),
    }
    if device.startswith("cuda"):
        found["cuda"] = torch.cuda.get_rng_state(device)
    return found


def set_random_states(states: Mapping[str, torch.Tensor], device: str) -> None:
    """Continue the generators from states that `random_states` returned."""
    torch.set_rng_state(states["torch"])
    version, *numbers = states["python"].tolist()
    pending = states["python-normal"].tolist()
    random.setstate((version, tuple(numbers), pending[0] if pending else None))
    *keys, position, has = states["numpy"].tolist()
    np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), position, has, states["numpy-normal"].item()))
    if "cuda" in states and device.startswith("cuda"):
        torch.cuda.set_rng_state(states["cuda"], device)


def host_state() -> Any:
    """What the generators of the host will draw, as a value that can be compared."""
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), repr(np.random.get_state())


def seed_all(seed: int) -> None:
    """Seed the three generators of the host, of which NumPy's takes 32 bits."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def begin_draws(seed: int, rank: int, step: int, device: str, built: torch.Tensor | None = None) -> None:
    """Seed the generators of a rank whose run begins at `step`: each rank draws a dropout of its own. Rank 0 goes on
    from where building the model left torch's, in the state `built` or (None) as it is: a loop on one process does."""
    own, here = seed_for(seed, step, rank), torch.get_rng_state() if built is None else built
    seed_all(own)
    if rank == 0:
        torch.set_rng_state(here)
    if device != CPU:
        torch.cuda.manual_seed(own if rank else seed)


States = tuple[torch.Tensor, Any, Any]


def host_states() -> States:
    """Where the three generators of the host are."""
    return torch.get_rng_state(), random.getstate(), np.random.get_state()


def set_host_states(states: States) -> None:
    """Continue the generators of the host from where they were."""
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])


@contextmanager
def generators_kept() -> Iterator[None]:
    """A context that has the generators of the host to itself and leaves them as they were."""
    with ALONE:
        states = host_states()
        try:
            yield
        finally:
            set_host_states(states)
