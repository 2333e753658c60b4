"""Codecs on a card that give each number a code of so many bits: one pass that encodes, packs and takes off, one that
decodes and adds, after one over all numbers where these have a scale.

message     head (4 bytes) | codes     or     codes     or     codes | means of onebit
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch
import triton.language as tl
from triton.language import constexpr, tensor

from partita.kernels import card_codes as codes
from partita.kernels.card_bits import (
    BLOCK,
    GROUPS,
    alignment,
    blocks,
    cells,
    get,
    kernel,
    launch,
    put,
    quotient,
    read_as,
    signed,
)
from partita.kernels.levels import HEAD, LEAST, MOST
from partita.kernels.tree import BOOK, CELLS, EDGES
from partita.wire.codec import SMALLEST, Settings

WHOLE: Final = 2**31 - 1  # a group of all numbers
PART: Final = 4 * BLOCK  # numbers of a program that only looks at them


@kernel
def encode_blocks(
    values: tensor, body: tensor, head: tensor, table: tensor, n: tensor, size: tensor, key: tensor,
    CODE: constexpr, VALUE: constexpr, WIDTH: constexpr, ALIGN: constexpr, OF: constexpr, BACK: constexpr,
    GROUPS: constexpr,
) -> None:  # fmt: skip
    """Codes of eight times GROUPS numbers; with BACK what they say is taken off."""
    group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    i = group[:, None] * 8 + tl.arange(0, 8)[None, :]
    inside = i < n
    v = tl.load(values + i, inside, other=0)
    code = CODE(v, i, head, table, key, OF)
    put(body, code, group, inside, size, WIDTH, ALIGN)
    if BACK:
        said = VALUE(code, tl.minimum(i, n - 1), head, table, OF, values.dtype.element_ty)
        tl.store(values + i, v - said, inside)


@kernel
def decode_blocks(
    values: tensor, body: tensor, head: tensor, table: tensor, n: tensor, size: tensor,
    VALUE: constexpr, WIDTH: constexpr, ALIGN: constexpr, OF: constexpr, ADD: constexpr, BLOCK: constexpr,
) -> None:  # fmt: skip
    """What the codes of BLOCK numbers say, put there or added."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    code = get(body, i, inside, size, WIDTH, ALIGN)
    said = VALUE(code, tl.minimum(i, n - 1), head, table, OF, values.dtype.element_ty)
    if ADD:
        said = tl.load(values + i, inside, other=0) + said
    tl.store(values + i, said, inside)


@dataclass(frozen=True, slots=True)
class Form:
    """A codec: what a number's code is and says, in how many bits, and what these are told of its settings."""

    code: Any
    value: Any
    width: Callable[[Settings], int]
    of: Callable[[Settings], int] = lambda settings: 0

    def encode(
        self, values: torch.Tensor, body: torch.Tensor, settings: Settings, key: int, back: bool,
        head: torch.Tensor, table: torch.Tensor,
    ) -> None:  # fmt: skip
        """Fill `body` with the codes of flat `values`, drawing random numbers by `key`; if `back`, what the codes say
        is taken off the values. `head` and `table` are what the code and the value of a number are told besides."""
        n, width = values.numel(), self.width(settings)
        launch(
            encode_blocks, blocks(n), values, cells(body, width), head, table, n, body.numel(), signed(key),
            CODE=self.code, VALUE=self.value, WIDTH=width, ALIGN=alignment(body), OF=self.of(settings),
            BACK=back, GROUPS=GROUPS,
        )  # fmt: skip

    def decode(
        self, body: torch.Tensor, values: torch.Tensor, settings: Settings, add: bool,
        head: torch.Tensor, table: torch.Tensor,
    ) -> None:  # fmt: skip
        """What the codes in `body` say, put into flat `values` or added."""
        n, width = values.numel(), self.width(settings)
        launch(
            decode_blocks, blocks(n), values, cells(body, width), head, table, n, body.numel(),
            VALUE=self.value, WIDTH=width, ALIGN=alignment(body), OF=self.of(settings), ADD=add, BLOCK=BLOCK,
        )  # fmt: skip


TRUNCATE: Final = Form(codes.truncate_code, codes.truncate_value, lambda s: 16)
ONEBIT: Final = Form(codes.sign_code, codes.sign_value, lambda s: 1, lambda s: min(int(s["group"]), WHOLE))
Head = Callable[[torch.Tensor, Settings], torch.Tensor]


def headed(
    form: Form, head_of: Head, dtype: torch.dtype = torch.float32, table_of: Callable[..., torch.Tensor] | None = None
) -> tuple[Callable[..., None], Callable[..., None]]:
    """The kernels of a codec whose codes follow a scale or an exponent, of `dtype`, that `head_of` finds."""

    def table(values: torch.Tensor) -> torch.Tensor:
        return table_of(values.device, values.dtype) if table_of else values

    def encode(values: torch.Tensor, message: torch.Tensor, settings: Settings, key: int, back: bool) -> None:
        head = head_of(values, settings)
        message[:HEAD] = head.view(torch.uint8)
        form.encode(values, message[HEAD:], settings, key, back, head, table(values))

    def decode(message: torch.Tensor, values: torch.Tensor, settings: Settings, add: bool) -> None:
        head = read_as(message[:HEAD], dtype)
        form.decode(message[HEAD:], values, settings, add, head, table(values))

    return encode, decode


@cache
def tree_table(device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """The 127 edges, the 128 numbers between them, and how many edges are below each cell."""
    return torch.cat([torch.from_numpy(part) for part in (EDGES, BOOK, CELLS)]).to(device, dtype)


def largest(values: torch.Tensor, settings: Settings) -> torch.Tensor:
    """`compiled.largest` in fp32: one pass, and nobody waits for it."""
    found: torch.Tensor = torch.linalg.vector_norm(values, torch.inf)
    return found.float().reshape(1)


def scale_of(values: torch.Tensor, settings: Settings) -> torch.Tensor:
    """`compiled.scale_of`."""
    found = largest(values, settings)
    return torch.where(found < SMALLEST, 0.0, found)


def scale_exponent(values: torch.Tensor, settings: Settings) -> torch.Tensor:
    """`levels.scale_exponent`, in int32."""
    levels = (1 << (int(settings["bits"]) - 1)) - 1
    if not settings["overflow"]:
        exponent = torch.empty(1, dtype=torch.int32, device=values.device)
        launch(exponent_block, 1, torch.linalg.vector_norm(values, torch.inf), exponent, LEVELS=levels, ZERO=LEAST)
        return exponent
    most = torch.full((), levels, dtype=torch.float64, device=values.device)
    found = (exponents(values, most) - LEAST).clamp_(min=0)
    beyond = torch.bincount(found, minlength=MOST - LEAST + 1).flip(0).cumsum(0).flip(0)
    allowed = beyond[1:].double() <= settings["overflow"] * values.numel()
    return (allowed.to(torch.int8).argmax(0, keepdim=True) + LEAST).to(torch.int32)


@kernel
def exponent_block(most: tensor, exponent: tensor, LEVELS: constexpr, ZERO: constexpr) -> None:
    """`levels.exponent_of` of one number / LEVELS."""
    number = tl.load(most).to(tl.float64) / tl.full((), LEVELS, tl.float64)
    tiny = number < 2.2250738585072014e-308  # 2^-1022, below which an fp64 has fewer bits
    bits = tl.where(tiny, number * 18014398509481984.0, number).to(tl.int64, bitcast=True)  # 2^54
    found = (bits >> 52) - 1023 + ((bits & 0xFFFFFFFFFFFFF) != 0).to(tl.int64) - tl.where(tiny, 54, 0)
    tl.store(exponent, tl.where(number == 0, ZERO, found).to(tl.int32))


def exponents(values: torch.Tensor, most: torch.Tensor) -> torch.Tensor:
    """`levels.exponent_of` of each |v| / most."""
    numbers = values.abs().double() / most
    fraction, exponent = torch.frexp(numbers)
    return torch.where(numbers == 0, LEAST, exponent - (fraction == 0.5).to(exponent.dtype))


@kernel
def extent_blocks(values: tensor, parts: tensor, n: tensor, BLOCK: constexpr, PART: constexpr) -> None:
    """Of PART numbers the largest magnitude and the sum of squares, in fp64."""
    most, squares = tl.zeros((BLOCK,), values.dtype.element_ty), tl.zeros((BLOCK,), tl.float64)
    for start in range(0, PART, BLOCK):
        i = tl.program_id(0) * PART + start + tl.arange(0, BLOCK)
        v = tl.load(values + i, i < n, other=0)
        wide = v.to(tl.float64)
        most = tl.maximum(most, tl.abs(v))
        squares += wide * wide
    at = parts + tl.program_id(0)
    tl.store(at, tl.max(most, 0).to(tl.float64))
    tl.store(at + tl.num_programs(0), tl.sum(squares, 0))


@kernel
def scale_of_parts(parts: tensor, clip: tensor, scale: tensor, programs: tensor, n: tensor, BLOCK: constexpr) -> None:
    """The largest magnitude of all, at most `clip` deviations from zero."""
    most, squares = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    for start in range(0, programs, BLOCK):
        i = start + tl.arange(0, BLOCK)
        most = tl.maximum(most, tl.load(parts + i, i < programs, other=0))
        squares += tl.load(parts + programs + i, i < programs, other=0)
    count = tl.zeros((), tl.float64) + n
    deviation = tl.sqrt(tl.sum(squares, 0) / count)
    tl.store(scale, tl.minimum(tl.max(most, 0), tl.load(clip) * deviation).to(tl.float32))


def ternary_scale(values: torch.Tensor, settings: Settings) -> torch.Tensor:
    """The largest |v| after clipping, as `signs` has it; sums of another order, which fp32 does not show."""
    clip, n = settings["clip"], values.numel()
    if not clip:
        return largest(values, settings)
    programs = -(-n // PART)
    parts = torch.empty((2, programs), dtype=torch.float64, device=values.device)
    launch(extent_blocks, programs, values, parts, n, BLOCK=BLOCK, PART=PART)
    scale = torch.empty(1, dtype=torch.float32, device=values.device)
    bound = torch.full((), clip, dtype=torch.float64, device=values.device)
    launch(scale_of_parts, 1, parts, bound, scale, programs, n, BLOCK=BLOCK)
    return scale


@kernel
def class_means(values: tensor, means: tensor, n: tensor, OF: constexpr, BLOCK: constexpr) -> None:
    """The means of the numbers below zero and of the others, of one group."""
    low = tl.program_id(0).to(tl.int64) * OF
    count = tl.minimum(n - low, OF)
    up, down = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    above = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(values + low + i, i < count, other=-1).to(tl.float64)
        up += tl.maximum(v, 0.0)
        down += tl.where(i < count, tl.minimum(v, 0.0), 0.0)
        above += (v >= 0).to(tl.int32)
    many = tl.sum(above, 0)
    at = means + 2 * tl.program_id(0)
    tl.store(at, quotient(tl.sum(down, 0), tl.maximum(count - many, 1).to(tl.float64)).to(tl.float32))
    tl.store(at + 1, quotient(tl.sum(up, 0), tl.maximum(many, 1).to(tl.float64)).to(tl.float32))


def encode_truncate(values: torch.Tensor, message: torch.Tensor, settings: Settings, key: int, back: bool) -> None:
    """`rounding.encode_truncate` on a card: 16 bits a number."""
    TRUNCATE.encode(values, message, settings, key, back, values, values)


def decode_truncate(message: torch.Tensor, values: torch.Tensor, settings: Settings, add: bool) -> None:
    """What a message of `encode_truncate` says, put into `values` or added."""
    TRUNCATE.decode(message, values, settings, add, values, values)


def encode_onebit(values: torch.Tensor, message: torch.Tensor, settings: Settings, key: int, back: bool) -> None:
    """`signs.encode_onebit` on a card: one bit a number, then two means in fp32 for each group."""
    n, group, size = values.numel(), int(settings["group"]), -(-values.numel() // 8)
    means = torch.empty(2 * -(-n // group), dtype=torch.float32, device=values.device)
    launch(class_means, len(means) // 2, values, means, n, OF=ONEBIT.of(settings), BLOCK=BLOCK)
    message[size:] = means.view(torch.uint8)
    ONEBIT.encode(values, message[:size], settings, key, back, values, means)


def decode_onebit(message: torch.Tensor, values: torch.Tensor, settings: Settings, add: bool) -> None:
    """What a message of `encode_onebit` says, put into `values` or added."""
    size = -(-values.numel() // 8)
    means = read_as(message[size:], torch.float32)
    ONEBIT.decode(message[:size], values, settings, add, values, means)


def bits(settings: Settings) -> int:
    """Bits of a code as the codec is set."""
    return int(settings["bits"])


def eight(settings: Settings) -> int:
    """Eight bits of a code, whatever the codec is set to."""
    return 8


LEVELS: Final = {
    "truncate": (encode_truncate, decode_truncate),
    "q8": headed(Form(codes.q8_code, codes.q8_value, eight), scale_of),
    "fixed": headed(Form(codes.fixed_code, codes.fixed_value, bits, bits), scale_exponent, torch.int32),
    "dorefa": headed(Form(codes.dorefa_code, codes.dorefa_value, bits, bits), largest),
    "dettmers8": headed(Form(codes.tree_code, codes.tree_value, eight), scale_of, table_of=tree_table),
    "terngrad": headed(Form(codes.ternary_code, codes.ternary_value, lambda s: 2), ternary_scale),
    "onebit": (encode_onebit, decode_onebit),
}
