"""Every codec's kernels against its plain twin where settings, lengths and numbers are not the usual ones: codes wider
than a byte, groups that end early, several blocks, zeros, ties and numbers at the bounds."""

from __future__ import annotations

import pytest
import torch

from partita.kernels.codecs import kernel_of
from partita.kernels.compiled import array_of, largest
from partita.kernels.lowrank import orthonormal
from partita.kernels.plain import decoded, encoded
from partita.kernels.tree import EDGES
from partita.wire.codec import SMALLEST, read_codecs, room, settings_of
from tests.kernels.agreement import normal

CODECS = (
    "fixed(bits=2)", "fixed(bits=7,overflow=0.05)", "fixed(bits=13)", "fixed(bits=32)", "dorefa(bits=3)",
    "dorefa(bits=11)", "dorefa(bits=32)", "onebit(group=5)", "terngrad(clip=0)", "terngrad(clip=1)",
    "qsgd(levels=1,group=7)", "qsgd(levels=300,group=100)", "qsgd(levels=32767,group=9,dense=1)",
    "qsgd(levels=32767,group=1)",
    "inceptionn(bound=0.0005)", "inceptionn(bound=0.1)", "adaptive(ratio=0.3)", "adacomp(bin=7)", "topk(ratio=0.3)",
    "threshold(threshold=0.5)", "dettmers8", "q8",
)  # fmt: skip
LENGTHS = (1, 3, 8, 17, 100, 8201)


def odd(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Numbers over nine powers of ten, every fourth of them from a few that are bounds or ties of some codec."""
    values = normal(count, count) * 10.0 ** (3 * normal(count, count + 1)).clamp(-6, 3)
    few = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 127.5 / 1000, 0.25, -0.2, 2.0**-17, 0.99999, -3e-5, 0.3])
    values[3::4] = few.double().repeat(count)[: len(values[3::4])]
    return values.to(dtype)


def check(text: str, values: torch.Tensor) -> torch.Tensor:
    """The same bytes in a message that held others before, the same numbers, nothing lost, and decoding adds. Returns
    the message."""
    (codec,) = read_codecs(text)
    kernel, left = kernel_of(codec), values.clone()
    message = torch.full((room(codec, len(values), values.element_size()),), 255, dtype=torch.uint8)
    used = kernel.encode(left, message, 9, back=True)
    twin = encoded(codec.name, values, settings_of(codec), 9)
    assert torch.equal(message[:used], twin)
    said = decoded(codec.name, twin, values, settings_of(codec))
    found, summed = torch.full_like(values, 7.0), values.clone()
    for into, add in ((found, False), (summed, True)):
        kernel.decode(twin, into, add=add)
    assert torch.equal(found, said)
    assert torch.equal(summed, values + said)
    assert torch.equal(left, values - said)
    return twin


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("text", CODECS)
def test_a_kernel_equals_its_plain_twin_at_the_bounds(text: str, dtype: torch.dtype) -> None:
    for count in LENGTHS:
        check(text, odd(count, dtype))
    check(text, torch.zeros(100, dtype=dtype))


@pytest.mark.parametrize(
    ("text", "numbers", "exponent"),
    [
        ("fixed(bits=2)", [1.0, -0.25, 0.5], 0), ("fixed(bits=2,overflow=0.25)", [1.0, -0.25, 0.5, 0.5], -1),
        ("fixed(bits=2,overflow=0.25)", [9.0, -9.0, *[1.0] * 6], 0),
        ("fixed(bits=2,overflow=0.2)", [8.0, *[1.0] * 3], 3),
        ("fixed(bits=2,overflow=0.5)", [1024.0 * (1 + 2.0**-52)] * 4, 11), ("fixed(bits=3)", [3.0, 1.0], 0),
        ("fixed(bits=3)", [3.0 + 2.0**-50, 1.0], 1), ("fixed(bits=3,overflow=0.1)", [-4.0, 1.0], 1),
    ],
)  # fmt: skip
def test_the_scale_is_the_least_that_saturates_no_more(text: str, numbers: list[float], exponent: int) -> None:
    """QU-02: numbers up to (2^(bits - 1) - 1) 2^e go in, and exactly the part `overflow` may be beyond."""
    message = check(text, torch.tensor(numbers, dtype=torch.float64))
    assert int(message[:4].view(torch.int32)) == exponent


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_number_between_two_of_the_tree_goes_to_the_lower_one(dtype: torch.dtype) -> None:
    """QU-04: also where it is so near to a bound that it is beyond it once it is rounded to fp32."""
    edges = torch.tensor(EDGES).to(dtype)
    near = [torch.nextafter(edges, torch.full_like(edges, bound)) for bound in (0.0, 1.0)]
    check("dettmers8", torch.cat([torch.ones(1, dtype=dtype), edges, -edges, *near]))


@pytest.mark.parametrize("name", ["q8", "dettmers8"])
def test_the_smallest_scale_is_one(name: str) -> None:
    assert check(name, torch.tensor([SMALLEST, -SMALLEST / 2]))[:4].any()
    assert not check(name, torch.tensor([SMALLEST / 2, 0.0]))[:4].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_largest_counts_wherever_it_stands(dtype: torch.dtype) -> None:
    for place in range(9):
        values = torch.full((9,), 0.5, dtype=dtype)
        values[place] = -3.0
        assert largest(array_of(values)) == 3.0


def test_factors_are_orthonormal_where_columns_are_nearly_the_same() -> None:
    """EX-02: what is left of a column after one projection is mostly round-off of that."""
    first, rest = normal(500, 1).float(), normal(1500, 2).float().view(500, 3)
    p = torch.cat([first[:, None], first[:, None] + 2e-4 * rest], 1)
    made = orthonormal(p.clone())
    torch.testing.assert_close(made.T @ made, torch.eye(4), rtol=0, atol=3e-6)
