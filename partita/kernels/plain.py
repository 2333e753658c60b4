"""Every codec again, in plain torch operators and many passes: the oracle of the fused kernels and of `verify`.

`encoded` gives a message of bytes, `decoded` the numbers that a message says, in fp32 or fp64 as asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch

from partita.wire.codec import kept

Settings = Mapping[str, float]
Encode = Callable[[torch.Tensor, Settings, int], torch.Tensor]
Decode = Callable[[torch.Tensor, torch.Tensor, Settings], torch.Tensor]


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8).clone()


def numbers(message: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return message.clone().view(dtype)


def half(dtype: torch.dtype) -> tuple[Encode, Decode]:
    """Rounded to the nearest number of a 16-bit dtype."""
    return (
        lambda v, s, key: bytes_of(v.to(dtype)),
        lambda message, like, s: numbers(message, dtype).to(like.dtype),
    )


def truncate(v: torch.Tensor, s: Settings, key: int) -> torch.Tensor:
    return bytes_of(v.float()).view(-1, 4)[:, 2:].reshape(-1)


def widen(message: torch.Tensor, like: torch.Tensor, s: Settings) -> torch.Tensor:
    upper = message.view(-1, 2)
    return numbers(torch.cat([torch.zeros_like(upper), upper], 1).reshape(-1), torch.float32).to(like.dtype)


def q8(v: torch.Tensor, s: Settings, key: int) -> torch.Tensor:
    scale = v.abs().max().float().reshape(1)
    step = scale.to(v.dtype)
    codes = torch.clamp(torch.round(v * (127 / step)), -127, 127) if float(scale) else torch.zeros_like(v)
    return torch.cat([bytes_of(scale), bytes_of(codes.to(torch.int8))])


def from_q8(message: torch.Tensor, like: torch.Tensor, s: Settings) -> torch.Tensor:
    scale = numbers(message[:4], torch.float32).to(like.dtype)
    return numbers(message[4:], torch.int8).to(like.dtype) * (scale / 127)


def packed(codes: torch.Tensor, width: int) -> torch.Tensor:
    """Codes of `width` bits in bytes, the first in the lowest bits."""
    each = 8 // width
    filled = torch.cat([codes.to(torch.int64), torch.zeros(-len(codes) % each, dtype=torch.int64)]).view(-1, each)
    return (filled << (width * torch.arange(each))).sum(1).to(torch.uint8)


def unpacked(message: torch.Tensor, width: int, count: int) -> torch.Tensor:
    codes = message.to(torch.int64)[:, None] >> (width * torch.arange(8 // width))
    return (codes & ((1 << width) - 1)).reshape(-1)[:count]


def onebit(v: torch.Tensor, s: Settings, key: int) -> torch.Tensor:
    means = []
    for group in torch.split(v, int(s["group"])):
        low, high = group[group < 0].double(), group[group >= 0].double()
        means += [low.sum() / max(len(low), 1), high.sum() / max(len(high), 1)]
    return torch.cat([packed(v >= 0, 1), bytes_of(torch.stack(means).float())])


def from_onebit(message: torch.Tensor, like: torch.Tensor, s: Settings) -> torch.Tensor:
    n, group = like.numel(), int(s["group"])
    bits = unpacked(message[: -(-n // 8)], 1, n)
    means = numbers(message[-(-n // 8) :], torch.float32)
    return means[2 * (torch.arange(n) // group) + bits].to(like.dtype)


def uniform(count: int, key: int) -> torch.Tensor:
    """The kernels' random numbers of [0, 1), from 64-bit integers."""
    low = 0xFFFFFFFF
    x = (torch.arange(count) * 0x9E3779B9 + key) & low
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        x = ((x ^ (x >> shift)) * factor) & low
    return ((x ^ (x >> 15)) >> 8).float() * 2.0**-24


def terngrad(v: torch.Tensor, s: Settings, key: int) -> torch.Tensor:
    wide, most = v.double(), v.abs().max().double()
    if s["clip"]:
        most = torch.minimum(most, s["clip"] * wide.var(unbiased=False).sqrt())
    scale = most.float()
    sent = uniform(len(v), key).to(v.dtype) * scale.to(v.dtype) < v.abs()
    return torch.cat([bytes_of(scale.reshape(1)), packed(torch.where(sent, torch.where(v > 0, 1, 2), 0), 2)])


def from_terngrad(message: torch.Tensor, like: torch.Tensor, s: Settings) -> torch.Tensor:
    scale = numbers(message[:4], torch.float32).to(like.dtype)
    return torch.tensor([0, 1, -1, 0], dtype=like.dtype)[unpacked(message[4:], 2, like.numel())] * scale


def topk(v: torch.Tensor, s: Settings, key: int) -> torch.Tensor:
    k = kept(len(v), s)
    if k == len(v):
        return bytes_of(v)
    places = torch.sort(v.abs(), descending=True, stable=True).indices[:k].sort().values
    return torch.cat([bytes_of(places.to(torch.int32)), bytes_of(v[places])])


def from_topk(message: torch.Tensor, like: torch.Tensor, s: Settings) -> torch.Tensor:
    k = kept(like.numel(), s)
    if k == like.numel():
        return numbers(message, like.dtype)
    found = torch.zeros_like(like)
    found[numbers(message[: 4 * k], torch.int32).long()] = numbers(message[4 * k :], like.dtype)
    return found


def threshold(v: torch.Tensor, s: Settings, key: int) -> torch.Tensor:
    places = torch.nonzero(v.abs() > s["threshold"]).reshape(-1)
    words = places | ((v[places] < 0).long() << 31)
    return bytes_of(words)[: 8 * len(words)].view(-1, 8)[:, :4].reshape(-1)


def from_threshold(message: torch.Tensor, like: torch.Tensor, s: Settings) -> torch.Tensor:
    words = numbers(message, torch.int32).long() & 0xFFFFFFFF
    found = torch.zeros_like(like)
    found[words & 0x7FFFFFFF] = torch.tensor([s["threshold"], -s["threshold"]], dtype=like.dtype)[words >> 31]
    return found


def places(name: str, message: torch.Tensor, count: int, s: Settings) -> torch.Tensor:
    """Of which of `count` numbers a sparse codec's message speaks."""
    if name == "threshold":
        return numbers(message, torch.int32).long() & 0x7FFFFFFF
    k = kept(count, s)
    return torch.arange(count) if k == count else numbers(message[: 4 * k], torch.int32).long()


PLAIN: Final[dict[str, tuple[Encode, Decode]]] = {
    "fp16": half(torch.float16), "bf16": half(torch.bfloat16), "truncate": (truncate, widen), "q8": (q8, from_q8),
    "onebit": (onebit, from_onebit), "terngrad": (terngrad, from_terngrad), "topk": (topk, from_topk),
    "dgc": (topk, from_topk), "threshold": (threshold, from_threshold),
}  # fmt: skip


def encoded(name: str, values: torch.Tensor, settings: Settings, key: int = 0) -> torch.Tensor:
    """The message of a flat tensor."""
    return PLAIN[name][0](values, settings, key)


def decoded(name: str, message: torch.Tensor, like: torch.Tensor, settings: Settings) -> torch.Tensor:
    """What a message says, in the shape and dtype of `like`."""
    return PLAIN[name][1](message, like, settings)
