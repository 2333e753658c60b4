"""Adam's step in one pass over memory on a processor, where torch goes over it ten times.

torch     w mul | m lerp | v mul, addcmul | d sqrt, div, add | w addcdiv       ten passes, two temporary tensors
here      w g m v -------------------------------------------> w m v           one

m and v have torch's bits. Its roots come from a library that does not round all of them to the nearest, so one weight
in some thousand is rounded otherwise; here a number's place in its tensor never matters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import torch
from numba.extending import intrinsic

from partita.arrays import Reals
from partita.kernels.compiled import array_of, fused
from partita.tracing.optimizer import one_pass

ROOM: Final = 2**16  # elements of a gradient that lies otherwise than its weight, put in order at once


def _fma(context: Any, a: Any, b: Any, c: Any) -> Any:
    """a b + c, rounded once."""
    return a(a, b, c), lambda context, builder, signature, arguments: builder.fma(*arguments)


fma: Any = intrinsic(_fma)


@fused
def _step(
    w: Reals, g: Reals, m: Reals, v: Reals, shrink: Any, decay: Any, toward: Any, second: Any, square: Any, rate: Any,
    root: Any, eps: Any, one: Any,
) -> None:  # fmt: skip
    for i in range(w.size):
        slope: Any = fma(decay, w[i], g[i])
        apart = slope - m[i]
        m[i] = fma(toward, apart, m[i]) if toward < 0.5 else fma(toward - one, apart, slope)
        v[i] = fma(square * slope, slope, v[i] * second)
        w[i] = w[i] * shrink + rate * m[i] / (np.sqrt(v[i]) / root + eps)


class OnePassAdam(torch.optim.Adam):
    """Adam (Kingma & Ba 2015) and AdamW (Loshchilov & Hutter 2019) of dense tensors in fp32 or fp64, with the groups
    and the state of torch's own."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step, with the gradients in `grad`."""
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is not None:
                    self._update(group, w, w.grad)

    def _update(self, group: dict[str, Any], w: torch.Tensor, gradient: torch.Tensor) -> None:
        state, (first, second), rate = self.state[w], group["betas"], group["lr"]
        if not state:
            kept = {name: torch.zeros_like(w) for name in ("exp_avg", "exp_avg_sq")}
            state |= {"step": torch.tensor(0.0, dtype=torch.float32)} | kept
        state["step"] += 1
        taken, decoupled = state["step"].item(), group["decoupled_weight_decay"]
        shrink, decay = (1 - rate * group["weight_decay"], 0.0) if decoupled else (1.0, group["weight_decay"])
        moved, root = -rate / (1 - first**taken), (1 - second**taken) ** 0.5
        weight, m, v = (array_of(each).reshape(-1) for each in (w, state["exp_avg"], state["exp_avg_sq"]))
        numbers = shrink, decay, 1 - first, second, 1 - second, moved, root, group["eps"], 1.0
        start = 0
        for piece in _in_order(gradient):
            g, stop = array_of(piece).reshape(-1), start + piece.numel()
            _step(weight[start:stop], g, m[start:stop], v[start:stop], *map(weight.dtype.type, numbers))
            start = stop


def _in_order(gradient: torch.Tensor) -> Iterator[torch.Tensor]:
    """A gradient as its elements lie in the weight: whole where it lies so too, else rows that a cache holds."""
    if gradient.is_contiguous():
        yield gradient
    else:
        rows = max(ROOM * len(gradient) // gradient.numel(), 1)
        yield from (part.contiguous() for part in torch.split(gradient, rows))


def in_one_pass(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The same optimizer, which takes its steps in one pass where it can."""
    if not one_pass(optimizer):
        return optimizer
    made = OnePassAdam(optimizer.param_groups)
    made.defaults = optimizer.defaults
    return made
