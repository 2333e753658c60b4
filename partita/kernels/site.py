"""What a codec may look at besides the numbers that it encodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch


@dataclass(frozen=True, slots=True)
class Site:
    """Where a codec works: the shapes of the bucket's pieces, what the codings before this one summed up to, what stays
    from step to step, alike everywhere, a seed that all workers share, and what of the numbers is new."""

    shapes: tuple[tuple[int, ...], ...] = ()
    sums: tuple[torch.Tensor, ...] = ()
    basis: torch.Tensor | None = None
    seed: int = 0
    fresh: torch.Tensor | None = None

    def on_host(self) -> Site:
        """The site with its tensors in the host's memory."""
        basis, fresh = (None if tensor is None else tensor.cpu() for tensor in (self.basis, self.fresh))
        return Site(self.shapes, tuple(one.cpu() for one in self.sums), basis, self.seed, fresh)


NOWHERE: Final = Site()
