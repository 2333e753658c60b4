"""Codecs that round to levels again, in plain torch operators: fixed point, DoReFa, tree, QSGD, INCEPTIONN."""

from __future__ import annotations

from math import ceil, log2
from typing import Any

import torch

from partita.kernels.plain_bits import bits_of, bytes_of, numbers, packed, scale_of, uniform, unpacked
from partita.wire.codec import Settings


def fixed(v: torch.Tensor, s: Settings, key: int) -> torch.Tensor:
    """The message of flat `v` as `levels.encode_fixed` makes it: the exponent in int32, then `bits` bits for each
    number."""
    half = 2 ** (int(s["bits"]) - 1)
    exponent = fixed_exponent(v, half - 1, s["overflow"])
    codes = torch.floor(v.double() * 2.0**-exponent + uniform(len(v), key).double()).clamp(-half, half - 1)
    return torch.cat([bytes_of(torch.tensor([exponent], dtype=torch.int32)), packed(codes.long(), int(s["bits"]))])


def fixed_exponent(v: torch.Tensor, most: int, overflow: float) -> int:
    """The least e for which at most the part `overflow` of the numbers is beyond +-most 2^e."""
    magnitudes = v.abs().double() / most
    if not float(magnitudes.max()):
        return -1000
    exponent = ceil(log2(float(magnitudes.max()))) + 1
    while float((magnitudes > 2.0 ** (exponent - 1)).double().sum()) <= overflow * len(v) and exponent > -1000:
        exponent -= 1
    return exponent


def from_fixed(message: torch.Tensor, like: torch.Tensor, s: Settings) -> torch.Tensor:
    """What a message of `fixed` says, in the shape and dtype of `like`."""
    bits = int(s["bits"])
    codes = unpacked(message[4:], bits, like.numel())
    codes = torch.where(codes >= 2 ** (bits - 1), codes - 2**bits, codes)
    return (codes.double() * 2.0 ** int(numbers(message[:4], torch.int32))).to(like.dtype)


def dorefa(v: torch.Tensor, s: Settings, key: int) -> torch.Tensor:
    """The message of flat `v` as `levels.encode_dorefa` makes it: max |v| in fp32, then `bits` bits for each number."""
    scale, levels = v.abs().max().float().reshape(1), 2 ** int(s["bits"]) - 1
    codes = torch.zeros(len(v), dtype=torch.float64)
    if float(scale):
        spread = v.double() * (levels / (2 * float(scale))) + levels / 2
        codes = torch.floor(spread + uniform(len(v), key).double()).clamp(0, levels)
    return torch.cat([bytes_of(scale), packed(codes.long(), int(s["bits"]))])


def from_dorefa(message: torch.Tensor, like: torch.Tensor, s: Settings) -> torch.Tensor:
    """What a message of `dorefa` says, in the shape and dtype of `like`."""
    scale, levels = float(numbers(message[:4], torch.float32)), 2 ** int(s["bits"]) - 1
    codes = unpacked(message[4:], int(s["bits"]), like.numel())
    found: torch.Tensor = codes.double() * (2 * scale / levels) - scale
    return found.to(like.dtype)


def tree_book() -> torch.Tensor:
    """0, then 10^-zeros times the fractions of all lengths of what is left of seven bits."""
    found = [torch.zeros(1, dtype=torch.float64)]
    for free in range(7):
        found.append(10.0 ** (free - 6) * (0.1 + 0.9 * torch.arange(1, 2**free + 1, dtype=torch.float64) / 2**free))
    return torch.cat(found)


def tree(v: torch.Tensor, s: Settings, key: int) -> torch.Tensor:
    """The message of flat `v` as `tree.encode_tree` makes it: max |v| in fp32, then a byte for each number."""
    scale, book = scale_of(v), tree_book()
    ratio = torch.where(scale > 0, 1 / scale.to(v.dtype), 0.0)
    edges = ((book[1:] + book[:-1]) / 2).to(v.dtype)
    codes = torch.bucketize(v.abs() * ratio, edges)
    return torch.cat([bytes_of(scale), torch.where((v < 0) & (codes > 0), codes + 128, codes).to(torch.uint8)])


def from_tree(message: torch.Tensor, like: torch.Tensor, s: Settings) -> torch.Tensor:
    """What a message of `tree` says, in the shape and dtype of `like`."""
    codes = message[4:].long()
    found = (tree_book().to(like.dtype) * numbers(message[:4], torch.float32).to(like.dtype))[codes % 128]
    return torch.where(codes > 127, -found, found)


def gamma(number: int) -> list[int]:
    """The bits of Elias' gamma code."""
    digits = number.bit_length() - 1
    return [*[0] * digits, 1, *((number >> k) & 1 for k in range(digits))]


def qsgd(v: torch.Tensor, s: Settings, key: int) -> torch.Tensor:
    """The message of flat `v` as `elias.encode_qsgd` makes it: the norms of all groups in fp32, then the stream of
    Elias' codes."""
    most, norms, stream = int(s["levels"]), [], list[int]()
    draws = torch.split(uniform(len(v), key).double(), int(s["group"]))
    for group, draw in zip(torch.split(v.double(), int(s["group"])), draws, strict=True):
        norm = (group * group).sum().sqrt().float()
        norms.append(norm)
        factor = most / float(norm) if float(norm) else 0.0
        levels = torch.floor(group.abs() * factor + draw).clamp(max=most) * torch.where(group < 0, -1, 1)
        stream += _dense(levels.long().tolist()) if s["dense"] else _gaps(levels.long().tolist())
    bits = torch.tensor(stream, dtype=torch.int64)
    return torch.cat([bytes_of(torch.stack(norms)), packed(bits, 1)])


def _dense(levels: list[int]) -> list[int]:
    return [bit for level in levels for bit in gamma(abs(level) + 1) + ([int(level < 0)] if level else [])]


def _gaps(levels: list[int]) -> list[int]:
    places = [i for i, level in enumerate(levels) if level]
    found = list[int]()
    for before, i in zip([-1, *places], [*places, len(levels)], strict=True):
        found += gamma(i - before)
        found += [*gamma(abs(levels[i])), int(levels[i] < 0)] if i < len(levels) else []
    return found


def from_qsgd(message: torch.Tensor, like: torch.Tensor, s: Settings) -> torch.Tensor:
    """What a message of `qsgd` says, in the shape and dtype of `like`."""
    size, n = int(s["group"]), like.numel()
    head = 4 * -(-n // size)
    norms, bits = numbers(message[:head], torch.float32).double(), iter(bits_of(message[head:]).tolist())
    found = torch.zeros(n, dtype=torch.float64)
    for g, norm in enumerate(norms.tolist()):
        i, stop = g * size - 1, min((g + 1) * size, n)
        while True:
            i += 1 if s["dense"] else _number(bits)
            if i >= stop:
                break
            level = _number(bits) - bool(s["dense"])
            sign = -1 if level and next(bits) else 1
            found[i] = sign * level * (norm / s["levels"])
    return found.to(like.dtype)


def _number(bits: Any) -> int:
    digits = 0
    while not next(bits):
        digits += 1
    rest: int = sum(next(bits) << k for k in range(digits))
    return (1 << digits) + rest


def ranges(v: torch.Tensor, s: Settings, key: int) -> torch.Tensor:
    """The message of flat `v` as `ranges.encode_ranges` makes it: two bits for each number, then none, one, two or all
    of its bytes."""
    wide, step = v.double(), 2 * s["bound"]
    tags, body = [], []
    for value, raw in zip(wide.tolist(), v.contiguous().view(torch.uint8).view(len(v), -1).tolist(), strict=True):
        code, two = round(value / step), max(min(round(value * 32768), 32767), -32767)
        tag = 3 if abs(value) >= 1 else 0 if code == 0 else 1 if abs(code) <= 127 else 2
        tags.append(tag)
        body += [[], [code % 256], [two % 256, two % 65536 // 256], raw][tag]
    return torch.cat([packed(torch.tensor(tags), 2), torch.tensor(body, dtype=torch.uint8)])


def from_ranges(message: torch.Tensor, like: torch.Tensor, s: Settings) -> torch.Tensor:
    """What a message of `ranges` says, in the shape and dtype of `like`."""
    n, item, found, at = like.numel(), like.element_size(), [], -(-like.numel() // 4)
    for tag in unpacked(message[:at], 2, n).tolist():
        size = (0, 1, 2, item)[tag]
        part = message[at : at + size]
        at += size
        if tag == 1:
            found.append(float(numbers(part, torch.int8)) * 2 * s["bound"])
        elif tag == 2:
            found.append(float(numbers(part, torch.int16)) / 32768)
        else:
            found.append(float(numbers(part, like.dtype)) if tag else 0.0)
    return torch.tensor(found, dtype=torch.float64).to(like.dtype)
