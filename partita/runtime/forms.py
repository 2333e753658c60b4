"""How values that cross between stages lie in memory and in their messages.

A message holds a value's elements once and densely. A value whose memory is a permutation of its dimensions
(transposed, channels last) is sent and received in the order of its memory, without a copy; others are copied on both
sides.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from partita.graph.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Form:
    """How a value lies in memory, and in its message.

    `shape` and `strides` are the value's. `once` has a 1 for each dimension of stride 0, which is sent once. `order`
    lists the dimensions from the slowest to the fastest in memory, `back` where each of them is in `order`; `elements`
    are those of the message, and `gaps` says that the value's memory has some that it does not fill.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    once: tuple[int, ...]
    order: tuple[int, ...]
    back: tuple[int, ...]
    elements: int
    dtype: torch.dtype
    gaps: bool

    def flat(self, value: torch.Tensor) -> torch.Tensor:
        """The elements of a value as bytes, in the order of its captured memory."""
        for d, stride in enumerate(self.strides):
            value = value if stride else value.narrow(d, 0, 1)
        flat = value.permute(self.order).contiguous().view(-1)
        return flat.as_strided((self.elements,), (1,)).view(torch.uint8)  # one element may keep any stride

    def shaped(self, elements: torch.Tensor) -> torch.Tensor:
        """The elements of a message, with the value's shape and strides."""
        dense = elements.view([self.once[d] for d in self.order]).permute(self.back)
        if self.gaps:
            dense = torch.empty_strided(self.once, self.strides, dtype=self.dtype, device=elements.device).copy_(dense)
        return dense.expand(self.shape)


def form_of(tensor: Tensor, batch: int) -> Form:
    """The form of a value for `batch` samples."""
    shape = tensor.shape_at(batch)
    strides = tensor.strides_at(batch) or torch.empty(shape, device="meta").stride()
    once = [size if stride else 1 for size, stride in zip(shape, strides, strict=True)]
    order = sorted(range(len(shape)), key=lambda d: (-strides[d], d))
    back = sorted(range(len(order)), key=lambda place: order[place])
    dense = torch.empty([once[d] for d in order], device="meta").permute(back)
    real = [size > 1 and stride > 0 for size, stride in zip(shape, strides, strict=True)]
    gaps = any(r and have != stride for r, have, stride in zip(real, dense.stride(), strides, strict=True))
    return Form(
        shape, strides, tuple(once), tuple(order), tuple(back), dense.numel(), getattr(torch, tensor.dtype), gaps,
    )  # fmt: skip
