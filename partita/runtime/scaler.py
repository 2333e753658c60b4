"""Loss scaling on one rank: the scale of the loss, the factor of gradients, and which steps are skipped.

round       0           1           2               C finds inf: U is skipped, and the next loss has half the scale
compute     F B(S) C U  F B(S) C -  F B(S/2) C U    if weights are gathered again, or are on stages
compute     F B(S)      C U F B(S)  C - F B(S/2)    if updates wait for their reader: C is of the round before

Every rank carries out C on the same numbers, so that all have the same scale and skip the same steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite

import torch

from partita.errors import RunError
from partita.program.scaling import SKIPPED, Scaling, bounding


@dataclass
class Scaler:
    """`scale` and `good` are the state after the last C. `loss` is the scale of the loss in each round, `factors`
    the factor of the gradients of each round (None: skipped), of the rounds whose gradients are still in flight."""

    scaling: Scaling | None
    scale: float = 1.0
    good: int = 0
    loss: dict[int, float] = field(default_factory=dict)
    factors: dict[int, float | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scale = self.scaling.start if self.scaling else 1.0

    def begin(self, flying: Sequence[float] = ()) -> None:
        """A leg begins; the gradients of its first rounds are in flight, computed with the scales `flying`."""
        self.loss = dict(enumerate((*flying, self.scale)))
        self.factors = {}

    def at(self, round: int) -> float:
        """The scale of the loss in a round."""
        return self.loss[round] if self.scaling else 1.0

    def bound(self, total: float, norm: float, round: int, lag: int, rank: int) -> None:
        """C: the gradients of `lag` rounds ago have the norm `total`, and are to have at most `norm` after unscaling.

        Raises RunError after too many skipped steps in a row.
        """
        factor: float | None = 1.0
        if round >= lag:
            scale = self.at(round - lag)
            finite = isfinite(total) or self.scaling is None
            bounded = 1.0 if norm == inf else bounding(total / scale, norm)
            factor = bounded / scale if finite else None
            if self.scaling:
                self.scale, self.good = self.scaling.after(self.scale, self.good, finite)
        self.factors[round] = factor
        self.loss[round if lag else round + 1] = self.scale
        self.loss.pop(round - lag - 1, None)
        self.factors.pop(round - lag - 1, None)
        if self.good <= -SKIPPED:
            raise RunError(
                f"gradients were not finite in {SKIPPED} steps in a row, the last time with the loss times "
                f"{self.scale:g}; no scale helps that: lower the rate, use precision=bf16, or look at the samples",
                rank=rank,
            )

    def usable(self, round: int) -> bool:
        """Whether the updates of a round are made."""
        return self.factors.get(round, 1.0) is not None

    def unscaled(
        self, gradients: Sequence[torch.Tensor], like: Sequence[torch.Tensor], round: int
    ) -> list[torch.Tensor]:
        """Gradients in the dtype of the masters `like`, bounded and divided by the loss scale."""
        factor = self.factors.get(round, 1.0) or 0.0
        wide = [torch.empty_like(view) for view in like]
        torch._foreach_copy_(wide, list(gradients))  # one launch on a card
        if factor != 1.0:
            torch._foreach_mul_(wide, factor)
        return wide


def norm_of(gradients: Iterable[torch.Tensor]) -> torch.Tensor:
    """The common norm of gradients; in fp64 if they are in half precision, since squares would overflow."""
    norms = [torch.linalg.vector_norm(g, dtype=torch.float64 if g.element_size() < 4 else None) for g in gradients]
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total
