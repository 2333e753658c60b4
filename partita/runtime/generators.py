"""The states of the random generators of a process: torch's, Python's and numpy's."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


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
