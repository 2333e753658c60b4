"""Every codec again, in plain torch operators and many passes: the oracle of the fused kernels and of `verify`.

`encoded` gives a message of bytes, `decoded` the numbers that a message says, in fp32 or fp64 as asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from partita.kernels.plain_bits import bytes_of, numbers, packed, scale_of, uniform, unpacked
from partita.kernels.plain_chosen import (
    adacomp,
    adaptive,
    from_adacomp,
    from_adaptive,
    from_threshold,
    from_topk,
    threshold,
    topk,
)
from partita.kernels.plain_levels import (
    dorefa,
    fixed,
    from_dorefa,
    from_fixed,
    from_qsgd,
    from_ranges,
    from_tree,
    qsgd,
    ranges,
    tree,
)
from partita.wire.codec import SPECS, Settings, kept
from partita.wire.offered import pair_offered
from partita.wire.plugins import Registry

Encode = Callable[..., torch.Tensor]
Decode = Callable[[torch.Tensor, torch.Tensor, Settings], torch.Tensor]


def half(dtype: torch.dtype) -> tuple[Encode, Decode]:
    """Rounded to the nearest number of a 16-bit dtype."""
    return (
        lambda v, s, key: bytes_of(v.to(dtype)),
        lambda message, like, s: numbers(message, dtype).to(like.dtype),
    )


def truncate(v: torch.Tensor, s: Settings, key: int) -> torch.Tensor:
    """The message of flat `v` as `rounding.encode_truncate` makes it: the upper 16 bits of each fp32."""
    return bytes_of(v.float()).view(-1, 4)[:, 2:].reshape(-1)


def widen(message: torch.Tensor, like: torch.Tensor, s: Settings) -> torch.Tensor:
    """What a message of `truncate` says, in the shape and dtype of `like`."""
    upper = message.view(-1, 2)
    return numbers(torch.cat([torch.zeros_like(upper), upper], 1).reshape(-1), torch.float32).to(like.dtype)


def q8(v: torch.Tensor, s: Settings, key: int) -> torch.Tensor:
    """The message of flat `v` as `rounding.encode_q8` makes it: max |v| in fp32, then a byte for each number."""
    scale = scale_of(v)
    step = scale.to(v.dtype)
    codes = torch.clamp(torch.round(v * (127 / step)), -127, 127) if float(scale) else torch.zeros_like(v)
    return torch.cat([bytes_of(scale), bytes_of(codes.to(torch.int8))])


def from_q8(message: torch.Tensor, like: torch.Tensor, s: Settings) -> torch.Tensor:
    """What a message of `q8` says, in the shape and dtype of `like`."""
    scale = numbers(message[:4], torch.float32).to(like.dtype)
    return numbers(message[4:], torch.int8).to(like.dtype) * (scale / 127)


def onebit(v: torch.Tensor, s: Settings, key: int) -> torch.Tensor:
    """The message of flat `v` as `signs.encode_onebit` makes it: a bit for each number, then two means in fp32 for each
    group."""
    means = []
    for group in torch.split(v, int(s["group"])):
        low, high = group[group < 0].double(), group[group >= 0].double()
        means += [low.sum() / max(len(low), 1), high.sum() / max(len(high), 1)]
    return torch.cat([packed(v >= 0, 1), bytes_of(torch.stack(means).float())])


def from_onebit(message: torch.Tensor, like: torch.Tensor, s: Settings) -> torch.Tensor:
    """What a message of `onebit` says, in the shape and dtype of `like`."""
    n, group = like.numel(), int(s["group"])
    bits = unpacked(message[: -(-n // 8)], 1, n)
    means = numbers(message[-(-n // 8) :], torch.float32)
    return means[2 * (torch.arange(n) // group) + bits].to(like.dtype)


def terngrad(v: torch.Tensor, s: Settings, key: int) -> torch.Tensor:
    """The message of flat `v` as `signs.encode_terngrad` makes it: the scale in fp32, then two bits for each number."""
    wide, most = v.double(), v.abs().max().double()
    if s["clip"]:
        most = torch.minimum(most, s["clip"] * wide.square().mean().sqrt())
    scale = most.float()
    sent = uniform(len(v), key).to(v.dtype) * scale.to(v.dtype) < v.abs()
    return torch.cat([bytes_of(scale.reshape(1)), packed(torch.where(sent, torch.where(v > 0, 1, 2), 0), 2)])


def from_terngrad(message: torch.Tensor, like: torch.Tensor, s: Settings) -> torch.Tensor:
    """What a message of `terngrad` says, in the shape and dtype of `like`."""
    scale = numbers(message[:4], torch.float32).to(like.dtype)
    return torch.tensor([0, 1, -1, 0], dtype=like.dtype)[unpacked(message[4:], 2, like.numel())] * scale


OURS: Final[dict[str, tuple[Encode, Decode]]] = {
    "fp16": half(torch.float16), "bf16": half(torch.bfloat16), "truncate": (truncate, widen), "q8": (q8, from_q8),
    "fixed": (fixed, from_fixed), "dettmers8": (tree, from_tree), "onebit": (onebit, from_onebit),
    "terngrad": (terngrad, from_terngrad), "qsgd": (qsgd, from_qsgd), "dorefa": (dorefa, from_dorefa),
    "adaptive": (adaptive, from_adaptive), "inceptionn": (ranges, from_ranges), "adacomp": (adacomp, from_adacomp),
    "threshold": (threshold, from_threshold), "topk": (topk, from_topk), "dgc": (topk, from_topk),
}  # fmt: skip
PLAIN: Final[Registry[tuple[Encode, Decode]]] = Registry("KERNELS", OURS, pair_offered)


def encoded(
    name: str, values: torch.Tensor, settings: Settings, key: int = 0, fresh: torch.Tensor | None = None
) -> torch.Tensor:
    """The message of a flat tensor; `fresh` is what of it is new, for codecs that look at that."""
    encode = PLAIN[name][0]
    return encode(values, settings, key, fresh) if SPECS[name].fresh else encode(values, settings, key)


def decoded(name: str, message: torch.Tensor, like: torch.Tensor, settings: Settings) -> torch.Tensor:
    """What a message says, in the shape and dtype of `like`."""
    return PLAIN[name][1](message, like, settings)


def places(name: str, message: torch.Tensor, like: torch.Tensor, settings: Settings) -> torch.Tensor:
    """Of which of the numbers a sparse codec's message speaks: of all, or of those that are something."""
    whole = "ratio" in settings and name != "adaptive" and kept(like.numel(), settings) == like.numel()
    found = decoded(name, message, like, settings)
    return (torch.ones_like(found) if whole else found).nonzero().reshape(-1)
