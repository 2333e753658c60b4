"""A rank's side of half precision: the scale of the loss, what gradients are multiplied by, steps that are left out.

round       0           1           2               C finds inf: no U, and the next loss is scaled by half
compute     F B(S) C U  F B(S) C -  F B(S/2) C U    as where weights are gathered again, or lie on stages
compute     F B(S)      C U F B(S)  C - F B(S/2)    as where updates wait for their reader: C of the round before

Every rank carries out C on the same numbers, so that all have the same scale and leave out the same steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, isfinite

import torch

from partita.errors import RunError
from partita.program.scaling import SKIPPED, Scaling

KEPT = 64  # rounds that are remembered


@dataclass
class Scaler:
    """`scale` and `good` are those after the last C, `loss` the scale of each round's loss, `factors` what the
    gradients of which a round's C told are multiplied by; None: left out."""

    scaling: Scaling | None
    scale: float = 1.0
    good: int = 0
    loss: dict[int, float] = field(default_factory=dict)
    factors: dict[int, float | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scale = self.scaling.start if self.scaling else 1.0

    def begin(self, flying: Sequence[float] = ()) -> None:
        """A leg begins; the gradients of its first rounds are in flight already, made with the scales `flying`."""
        self.loss = dict(enumerate((*flying, self.scale)))
        self.factors = {}

    def at(self, round: int) -> float:
        """The scale of the loss in a round."""
        return self.loss[round] if self.scaling else 1.0

    def bound(self, total: float, norm: float, round: int, lag: int, rank: int) -> None:
        """C: the gradients of `lag` rounds ago have the norm `total`, and are to have at most `norm`, unscaled.

        Raises RunError after too many steps in a row that were left out.
        """
        factor: float | None = 1.0
        if round >= lag:
            scale = self.at(round - lag)
            finite = isfinite(total) or self.scaling is None
            bounded = 1.0 if norm == inf else min(norm / (total / scale + 1e-6), 1.0)
            factor = bounded / scale if finite else None
            if self.scaling:
                self.scale, self.good = self.scaling.after(self.scale, self.good, finite)
        self.factors[round] = factor
        self.loss[round if lag else round + 1] = self.scale
        self.loss.pop(round - KEPT, None)
        self.factors.pop(round - KEPT, None)
        if self.good <= -SKIPPED:
            raise RunError(
                f"gradients were not finite in {SKIPPED} steps in a row, the last time with the loss times "
                f"{self.scale:g}; no scale helps that: lower the rate, use precision=bf16, or look at the samples",
                rank=rank,
            )

    def usable(self, round: int) -> bool:
        """Whether a round's updates are made."""
        return self.factors.get(round, 1.0) is not None

    def unscaled(
        self, gradients: Sequence[torch.Tensor], like: Sequence[torch.Tensor], round: int
    ) -> list[torch.Tensor]:
        """Gradients in the precision of the masters `like`, bounded and without the loss's scale."""
        factor = self.factors.get(round, 1.0) or 0.0
        wide = [g.to(view.dtype, copy=True) for g, view in zip(gradients, like, strict=True)]
        if factor != 1.0:
            torch._foreach_mul_(wide, factor)
        return wide


def norm_of(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """The norm of all of them together; of short ones in fp64, for their squares would overflow."""
    norms = [torch.linalg.vector_norm(g, dtype=torch.float64 if g.element_size() < 4 else None) for g in gradients]
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total
