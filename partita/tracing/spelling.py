"""How values of torch are spelt without torch: `torch.float32` as "float32"."""

from __future__ import annotations

import torch


def spelt(value: torch.dtype | torch.layout | torch.memory_format) -> str:
    """Its name within torch, from which `getattr(torch, name)` makes it again."""
    return str(value).removeprefix("torch.")
