"""Attention on an accelerator: captures name the processor's operator, which has no kernel there.

captured   out, logsumexp = flash_for_cpu(q, k, v)       there   torch's own choice among flash and efficient ones
           d_q, d_k, d_v  = flash_for_cpu_backward       the same choice once more: it looks at shapes and dtypes alone

Captured calls have no dropout (it is an operator of its own), so that nothing random has to be kept for backward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

FLASH: Final = 1  # what torch calls it (SDPBackend)
LINE: Final = 32  # what a row of its sums begins at multiples of
WIDTH: Final = 8  # what a mask's rows begin at multiples of, where the efficient kernel reads it


def _flash(q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None, scale: float | None) -> bool:
    return bool(torch._fused_sdp_choice(q, k, v, mask, 0.0, causal, scale=scale) == FLASH)


def _bias(mask: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """A mask for the efficient kernel: of all heads, in rows that are aligned."""
    if mask is None:
        return None
    shape, width = (*q.shape[:3], k.shape[2]), -(-k.shape[2] // WIDTH) * WIDTH
    return torch.nn.functional.pad(mask.to(q.dtype), (0, width - k.shape[2])).narrow(-1, 0, k.shape[2]).expand(shape)


def _sums(logsumexp: Tensor) -> Tensor:
    """In rows that begin where the efficient kernel reads them; its own do already."""
    if logsumexp.stride(1) % LINE == 0 and logsumexp.stride(2) == 1:
        return logsumexp
    length = logsumexp.shape[2]
    return torch.nn.functional.pad(logsumexp, (0, -length % LINE)).contiguous()


def forward(
    q: Tensor, k: Tensor, v: Tensor, probability: float = 0.0, causal: bool = False, *, attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Of (B, H, L, D) each; the output and the logarithms of the sums."""
    if _flash(q, k, v, causal, attn_mask, scale):
        made = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, probability, causal, False, scale=scale)
    else:
        bias = _bias(attn_mask, q, k)
        made = torch.ops.aten._scaled_dot_product_efficient_attention(
            q, k, v, bias, True, probability, causal, scale=scale
        )
    return made[0], made[1]


def backward(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, probability: float, causal: bool,
    *, attn_mask: Tensor | None = None, scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The derivatives of q, k and v."""
    if _flash(q, k, v, causal, attn_mask, scale):
        nothing = torch.empty(2, dtype=torch.uint64, device=q.device)  # where a generator stood, had it been asked
        made = torch.ops.aten._scaled_dot_product_flash_attention_backward(
            d_out, q, k, v, out, logsumexp.contiguous(), None, None, q.shape[2], k.shape[2], probability, causal,
            nothing, nothing, scale=scale,
        )  # fmt: skip
    else:
        nothing = torch.empty((), dtype=torch.int64, device=q.device)
        made = torch.ops.aten._scaled_dot_product_efficient_attention_backward(
            d_out, q, k, v, _bias(attn_mask, q, k), out, _sums(logsumexp), nothing, nothing, probability,
            [True, True, True, False], causal, scale=scale,
        )  # fmt: skip
    return made[0], made[1], made[2]


TWINS: Final[Mapping[str, Callable[..., Any]]] = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": forward,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": backward,
}
