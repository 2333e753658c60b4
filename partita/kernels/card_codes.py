"""What numbers become on a card, one by one: the code of each as the codec's module says it, and what a code means.

    code(v, i, head, table, key, OF)     number i as `WIDTH` bits, in uint32
    value(code, i, head, table, OF, KIND)    what that says, in KIND

head    what the message begins with, one number of four bytes: a scale or an exponent
table   numbers that are looked up: the tree's edges, book and cells, onebit's means
OF      what the codec is set to: bits of a level, numbers of a group
"""

from __future__ import annotations

import triton.language as tl
from triton.language import constexpr, tensor

from partita.kernels.card_bits import kernel, power, quotient, scaled, uniform
from partita.kernels.tree import CELL as TREE_CELL

CELL: constexpr = constexpr(TREE_CELL)


@kernel
def truncate_code(v: tensor, i: tensor, head: tensor, table: tensor, key: tensor, OF: constexpr) -> tensor:
    """The upper 16 bits of each number in fp32."""
    return v.to(tl.float32).to(tl.uint32, bitcast=True) >> 16


@kernel
def truncate_value(code: tensor, i: tensor, head: tensor, table: tensor, OF: constexpr, KIND: constexpr) -> tensor:
    """The fp32 whose upper 16 bits are the code, the others 0."""
    return (code << 16).to(tl.float32, bitcast=True).to(KIND)


@kernel
def q8_code(v: tensor, i: tensor, head: tensor, table: tensor, key: tensor, OF: constexpr) -> tensor:
    """round(127 v / m), ties to even, within +-127, where the head is m = max |v|."""
    scaled = v * quotient(tl.full((), 127, v.dtype), tl.load(head).to(v.dtype))
    within = tl.minimum(tl.maximum(scaled, -127.0), 127.0)
    if v.dtype == tl.float32:
        whole = (within + 12582912.0) - 12582912.0  # 1.5 * 2^23: what is added is rounded to the nearest even
    else:
        whole = (within + 6755399441055744.0) - 6755399441055744.0  # 1.5 * 2^52
    return whole.to(tl.int32).to(tl.uint32)


@kernel
def q8_value(code: tensor, i: tensor, head: tensor, table: tensor, OF: constexpr, KIND: constexpr) -> tensor:
    """code m / 127, where the head is m."""
    step = quotient(tl.load(head).to(KIND), tl.full((), 127, KIND))
    return code.to(tl.int8).to(KIND) * step


@kernel
def fixed_code(v: tensor, i: tensor, head: tensor, table: tensor, key: tensor, OF: constexpr) -> tensor:
    """floor(v / 2^e + a random number of [0, 1)), saturated to OF bits with sign, where the head is e."""
    if v.dtype == tl.float32 and OF <= 22:
        return up_or_down(v, tl.load(head), uniform(i, key), 1 << (OF - 1)).to(tl.int32).to(tl.uint32)
    else:
        half = tl.full((), 1 << (OF - 1), tl.float64)
        noisy = tl.floor(v.to(tl.float64) * power(-tl.load(head)) + uniform(i, key).to(tl.float64))
        return tl.minimum(tl.maximum(noisy, -half), half - 1.0).to(tl.int32).to(tl.uint32)


@kernel
def up_or_down(v: tensor, exponent: tensor, noise: tensor, HALF: constexpr) -> tensor:
    """floor(v / 2^e + noise) saturated, of fp32 and in fp32, as if the sum had all its bits: the noise, a multiple of
    2^-24, lifts a number where it is at least what that lacks, of which the rounding is looked at as well."""
    number = scaled(v, -exponent)
    number = tl.where(v < 0, tl.minimum(number, -1e-30), number)  # what is below zero stays there
    number = tl.minimum(tl.maximum(number, -1.0 * HALF), HALF - 1.0)
    nearest = (number + 12582912.0) - 12582912.0  # 1.5 * 2^23: what is added is rounded to the nearest even
    lower = tl.where(nearest > number, nearest - 1.0, nearest)
    lack = (lower + 1.0) - number
    beside = ((lower + 1.0) - lack) - number  # what the difference lost
    up = (noise > lack) | ((noise == lack) & (beside <= 0))
    return tl.minimum(tl.where(up, lower + 1.0, lower), HALF - 1.0)


@kernel
def fixed_value(code: tensor, i: tensor, head: tensor, table: tensor, OF: constexpr, KIND: constexpr) -> tensor:
    """code 2^e, the code's OF bits read with sign, where the head is e."""
    bits = (code & ((1 << OF) - 1)).to(tl.int64 if OF > 22 else tl.int32)
    whole = bits - ((bits >> (OF - 1)) << OF)
    if tl.float32 == KIND and OF <= 22:
        return scaled(whole.to(tl.float32), tl.load(head))
    else:
        return (whole.to(tl.float64) * power(tl.load(head))).to(KIND)


@kernel
def dorefa_code(v: tensor, i: tensor, head: tensor, table: tensor, key: tensor, OF: constexpr) -> tensor:
    """v of [-m, m] rounded at random to one of 2^OF levels, where the head is m; 0 where m is 0."""
    levels, wide = tl.full((), (1 << OF) - 1, tl.float64), tl.load(head).to(tl.float64)
    noisy = v.to(tl.float64) * quotient(levels, 2.0 * wide) + levels * 0.5 + uniform(i, key).to(tl.float64)
    code = noisy.to(tl.int64 if OF > 30 else tl.int32)
    return tl.where(wide == 0, 0, tl.minimum(tl.maximum(code, 0), (1 << OF) - 1).to(tl.uint32))


@kernel
def dorefa_value(code: tensor, i: tensor, head: tensor, table: tensor, OF: constexpr, KIND: constexpr) -> tensor:
    """The level of [-m, m] that a code of OF bits stands for, where the head is m."""
    levels, wide = tl.full((), (1 << OF) - 1, tl.float64), tl.load(head).to(tl.float64)
    return (code.to(tl.float64) * quotient(2.0 * wide, levels) - wide).to(KIND)


@kernel
def tree_code(v: tensor, i: tensor, head: tensor, table: tensor, key: tensor, OF: constexpr) -> tensor:
    """How many of the 127 edges are below |v| / m: those below its cell, in which two more are at most; the sign."""
    number = tl.abs(v) * quotient(tl.full((), 1, v.dtype), tl.load(head).to(v.dtype))
    cell = number.to(tl.float32).to(tl.int32, bitcast=True) >> CELL
    code = tl.load(table + 255 + cell).to(tl.int32)
    if v.dtype == tl.float64:  # in fp32 it may have come to the next cell
        code -= ((code > 0) & (tl.load(table + tl.maximum(code - 1, 0)) >= number)).to(tl.int32)
    for _ in tl.static_range(2):
        code += ((code < 127) & (tl.load(table + tl.minimum(code, 126)) < number)).to(tl.int32)
    return tl.where((v < 0) & (code > 0), code + 128, code).to(tl.uint32)


@kernel
def tree_value(code: tensor, i: tensor, head: tensor, table: tensor, OF: constexpr, KIND: constexpr) -> tensor:
    """Of the book, which follows the edges."""
    value = tl.load(table + 127 + (code & 127).to(tl.int32)) * tl.load(head).to(KIND)
    return tl.where(code > 127, -value, value)


@kernel
def ternary_code(v: tensor, i: tensor, head: tensor, table: tensor, key: tensor, OF: constexpr) -> tensor:
    """1 for +s, 2 for -s, 0 for neither: sign(v) is sent with probability |v| / s, where the head is s."""
    sent = uniform(i, key).to(v.dtype) * tl.load(head).to(v.dtype) < tl.abs(v)
    return tl.where(sent, tl.where(v < 0, 2, 1), 0).to(tl.uint32)


@kernel
def ternary_value(code: tensor, i: tensor, head: tensor, table: tensor, OF: constexpr, KIND: constexpr) -> tensor:
    """s, -s or 0, where the head is s."""
    sign = (code == 1).to(tl.int32) - (code == 2).to(tl.int32)
    return tl.load(head).to(KIND) * sign.to(KIND)


@kernel
def sign_code(v: tensor, i: tensor, head: tensor, table: tensor, key: tensor, OF: constexpr) -> tensor:
    """1 where v >= 0, else 0."""
    return (v >= 0).to(tl.uint32)


@kernel
def sign_value(code: tensor, i: tensor, head: tensor, table: tensor, OF: constexpr, KIND: constexpr) -> tensor:
    """The mean of its class of its group."""
    return tl.load(table + (2 * (i // OF) + code.to(tl.int32))).to(KIND)
