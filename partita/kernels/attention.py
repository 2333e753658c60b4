"""Attention on an accelerator: captures name the processor's operator, which has no kernel there.

captured   out, logsumexp = flash_for_cpu(q, k, v)       there   what torch chooses: flash, efficient, cuDNN, in blocks
           d_q, d_k, d_v  = flash_for_cpu_backward       the same choice once more: it looks at shapes and dtypes alone

Attention with dropout is an operator of its own, which keeps where the kernel's generator stood for backward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from partita.tracing import dropped_attention as in_blocks

NONE: Final = 0  # what torch calls its choices (SDPBackend)
FLASH: Final = 1
EFFICIENT: Final = 2
CUDNN: Final = 3
NOWHERE: Final = torch.empty(2, dtype=torch.int64)  # a state that nobody reads
LINE: Final = 32  # what a row of its sums begins at multiples of
WIDTH: Final = 8  # what a mask's rows begin at multiples of where the efficient kernel reads it, and heads for flash


def takes(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, probability: float, causal: bool, scale: float | None
) -> bool:
    """Whether a card has a kernel for this."""
    return q.device.type == "cuda" and _choice(q, k, v, mask, probability, causal, scale) != NONE


def _choice(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, probability: float, causal: bool, scale: float | None
) -> int:
    """Torch's, but for masks the efficient kernel instead of cuDNN's, where rows that are masked altogether are 0."""
    choice = int(torch._fused_sdp_choice(q, k, v, mask, probability, causal, scale=scale))
    return EFFICIENT if choice == CUDNN and mask is not None else choice


def _bias(mask: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """A mask for the efficient kernel: of all heads, in rows that are aligned."""
    if mask is None:
        return None
    shape, width = (*q.shape[:3], k.shape[2]), -(-k.shape[2] // WIDTH) * WIDTH
    return pad(mask.to(q.dtype), (0, width - k.shape[2])).narrow(-1, 0, k.shape[2]).expand(shape)


def _sums(logsumexp: Tensor) -> Tensor:
    """In rows that begin where the efficient kernel reads them; its own do already."""
    if logsumexp.stride(1) % LINE == 0 and logsumexp.stride(2) == 1:
        return logsumexp
    return pad(logsumexp, (0, -logsumexp.shape[2] % LINE)).contiguous()


def _laid(tensor: Tensor) -> Tensor:
    """With heads behind places in memory, as torch's other kernels leave it."""
    behind = tensor.transpose(1, 2)
    return tensor if behind.is_contiguous() else behind.clone(memory_format=torch.contiguous_format).transpose(1, 2)


def _wide(tensor: Tensor) -> Tensor:
    """With heads as wide as flash takes them."""
    return pad(tensor, (0, -tensor.shape[-1] % WIDTH)) if tensor.shape[-1] % WIDTH else tensor


def _narrow(tensor: Tensor, like: Tensor) -> Tensor:
    """With heads as wide as those of another tensor again, laid as torch's kernels lay them."""
    if tensor.shape[-1] == like.shape[-1]:
        return tensor
    return _laid(tensor.narrow(-1, 0, like.shape[-1]))


def dropped(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, probability: float, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Of (B, H, L, D) each; the output, the logarithms of the sums, and two numbers that say where the kernel's
    generator stood: on the host with the efficient kernel, on the card with the others."""
    choice = _choice(q, k, v, mask, probability, causal, scale)
    made = _called(choice, q, k, v, mask, probability, causal, scale)
    return made[0], made[1], made[2].view(torch.int64) if choice == FLASH else torch.stack(made[2:4]).view(2)


def forward(
    q: Tensor, k: Tensor, v: Tensor, probability: float = 0.0, causal: bool = False, *, attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Of (B, H, L, D) each; the output and the logarithms of the sums."""
    choice, told = _choice(q, k, v, attn_mask, probability, causal, scale), (probability, causal, scale)
    if choice == NONE:
        return in_blocks.forward(in_blocks.everything, NOWHERE, q, k, v, attn_mask, *told)[:2]
    made = _called(choice, q, k, v, attn_mask, *told)
    return made[0], made[1]


def _called(
    choice: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, probability: float, causal: bool,
    scale: float | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The output, the logarithms of the sums, and where the chosen kernel's generator stood, in one tensor or two."""
    aten = torch.ops.aten
    if choice == FLASH:
        times = q.shape[-1] ** -0.5 if scale is None else scale
        made = aten._scaled_dot_product_flash_attention(*map(_wide, (q, k, v)), probability, causal, False, scale=times)
        return _narrow(made[0], v), made[1], made[6]
    if choice == CUDNN:
        made = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, probability, causal, scale=scale)
        return _laid(made[0]), made[1].squeeze(-1), made[6], made[7]
    bias = _bias(mask, q, k)
    made = aten._scaled_dot_product_efficient_attention(q, k, v, bias, True, probability, causal, scale=scale)
    return tuple(made)


def backward(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, probability: float, causal: bool,
    *, attn_mask: Tensor | None = None, scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The derivatives of q, k and v."""
    choice, told = _choice(q, k, v, attn_mask, probability, causal, scale), (probability, causal, scale)
    given = d_out, q, k, v, attn_mask, out, logsumexp
    if choice == NONE:
        return in_blocks.backward(in_blocks.everything, *given, NOWHERE, *told)
    nothing = torch.empty(2, dtype=torch.int64, device=q.device)  # where a generator stood, had it been asked
    return _called_back(choice, *given, nothing, *told)


def dropped_backward(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, out: Tensor, sums: Tensor, state: Tensor,
    probability: float, causal: bool, scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The derivatives of q, k and v, with what was dropped in forward."""
    choice = _choice(q, k, v, mask, probability, causal, scale)
    there = state.cpu() if choice == EFFICIENT else state.to(q.device, non_blocking=True)  # where each kernel reads it
    return _called_back(choice, d_out, q, k, v, mask, out, sums, there, probability, causal, scale)


def _called_back(
    choice: int, d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, out: Tensor, sums: Tensor,
    state: Tensor, probability: float, causal: bool, scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    aten = torch.ops.aten
    if choice == FLASH:
        times, begun = q.shape[-1] ** -0.5 if scale is None else scale, state.view(torch.uint64)
        d_q, d_k, d_v = aten._scaled_dot_product_flash_attention_backward(
            *map(_wide, (d_out, q, k, v, out)), sums.contiguous(), None, None, q.shape[2], k.shape[2], probability,
            causal, begun, begun, scale=times,
        )  # fmt: skip
        return _narrow(d_q, q), _narrow(d_k, k), _narrow(d_v, v)
    if choice == CUDNN:
        seed, offset = state.unbind()
        offset = offset.clone() if probability else offset  # to an address that the kernel reads
        made = aten._scaled_dot_product_cudnn_attention_backward(
            d_out, q, k, v, out, sums.unsqueeze(-1), seed, offset, None, None, None, q.shape[2], k.shape[2],
            probability, causal, scale=scale,
        )  # fmt: skip
        return _laid(made[0]), _laid(made[1]), _laid(made[2])
    made = aten._scaled_dot_product_efficient_attention_backward(
        d_out, q, k, v, _bias(mask, q, k), out, _sums(sums), *state.unbind(), probability,
        [True, True, True, False], causal, scale=scale,
    )  # fmt: skip
    return made[0], made[1], made[2]


TWINS: Final[Mapping[str, Callable[..., Any]]] = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": forward,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": backward,
}
