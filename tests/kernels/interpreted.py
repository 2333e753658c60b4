"""Kernels for cards in Triton's interpreter, on the processor, against the numba kernels: run by `test_cards`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from partita.kernels import card_largest, cards
from partita.kernels.codecs import kernel_of
from partita.kernels.compiled import uniform
from partita.kernels.tree import BOOK, EDGES
from partita.plan.wire import Codec
from partita.wire.codec import room
from tests.kernels.agreement import KEYS, LENGTHS, disagreements, named, numbers

DTYPES = (torch.float32, torch.float64)
NAMES = sorted(cards.TRITON)


OTHERS = [
    *(named("fixed", bits=float(bits), overflow=part) for bits in (2, 5, 8, 9, 16, 23, 32) for part in (0.0, 0.01)),
    *(named("dorefa", bits=float(bits)) for bits in (2, 3, 8, 11, 16, 25, 32)),
    *(named("onebit", group=group) for group in (100.0, 5000.0, 1e12)),
    *(named(name, ratio=ratio) for name in ("topk", "dgc") for ratio in (1e-9, 0.3, 1.0)),
    named("terngrad", clip=0.0),
    named("threshold", threshold=1.0),
]  # fmt: skip


def of_all(codec: Codec, many: Sequence[torch.Tensor], key: int = 7, shift: int = 0) -> list[str]:
    pair = cards.pairs()[codec.name]
    return [text for values in many for text in disagreements(codec, values, pair, key, shift=shift)]


def test_what_is_said_to_have_kernels_has_them() -> None:
    assert set(cards.pairs()) == cards.TRITON
    assert not cards.TRITON & cards.ANYWHERE


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_card_says_what_the_processor_says(name: str, dtype: torch.dtype) -> None:
    many = [values for n in LENGTHS for values in (numbers(n, dtype), torch.zeros(n, dtype=dtype))]
    assert not of_all(Codec(name), many)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("name", ["fixed", "dorefa", "terngrad"])
def test_random_numbers_are_those_of_the_key(name: str, key: int) -> None:
    assert not of_all(Codec(name), [numbers(1000, torch.float32)], key)


@pytest.mark.parametrize("codec", OTHERS, ids=lambda codec: f"{codec.name}-{codec.settings}")
def test_with_other_settings(codec: Codec) -> None:
    assert not of_all(codec, [numbers(n, torch.float32) for n in (1, 9, 2500)])


@pytest.mark.parametrize("name", NAMES)
def test_of_numbers_of_all_sizes(name: str) -> None:
    """From 1e-30 to 1e30, so that codes are at the ends of their ranges."""
    spread = numbers(3000, torch.float32, 1.0) * 10.0 ** torch.linspace(-30, 30, 3000)
    assert not of_all(Codec(name), [spread, spread.abs(), -spread.abs()])


@pytest.mark.parametrize("exponent", [-100, 0, 90])
def test_numbers_that_the_random_one_hardly_lifts(exponent: int) -> None:
    """At what each lacks to the next level, and one fp32 before and behind it; 127 levels are 1."""
    lacks = 1 - torch.tensor([uniform(np.uint32(i), np.uint32(7)) for i in range(2000)], dtype=torch.float64)
    levels = torch.arange(2000, dtype=torch.float64) % 5 - 3 + lacks
    near = torch.cat([levels[:1000], lacks[1000:] - 1]).float()
    for some in (near, near.nextafter(torch.tensor(-9.0)), near.nextafter(torch.tensor(9.0))):
        scaled = some * 2.0**exponent
        scaled[0] = 127 * 2.0**exponent
        assert not of_all(Codec("fixed"), [scaled])


def test_the_least_number_below_zero_is_lifted_by_anything_but_nothing() -> None:
    """By this key the random number of element 1 is 0, and fp32 has no quotient of the number and the scale."""
    key, least = 7929384, -torch.finfo(torch.float32).smallest_normal
    assert uniform(np.uint32(1), np.uint32(key)) == 0
    assert not of_all(Codec("fixed"), [torch.tensor([1e30, least, least])], key)


@pytest.mark.parametrize("shift", [1, 2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_messages_may_begin_anywhere(name: str, shift: int) -> None:
    assert not of_all(Codec(name), [numbers(4097, torch.float32)], shift=shift)


def test_numbers_between_two_codes_of_the_tree() -> None:
    """At each edge, the number before and the one behind it."""
    edges = torch.from_numpy(EDGES).float()
    near = [
        edges,
        edges.nextafter(torch.tensor(0.0)),
        edges.nextafter(torch.tensor(1.0)),
        torch.from_numpy(BOOK).float(),
    ]
    values = torch.cat([torch.ones(1), *near])
    assert not of_all(Codec("dettmers8"), [values, -values, values * 3.0])


@pytest.mark.parametrize("name", ["q8", "truncate"])
def test_halves_go_to_the_even(name: str) -> None:
    values = torch.arange(-127, 128, dtype=torch.float32).repeat(2) + torch.tensor([0.0, 0.5]).repeat_interleave(255)
    assert not of_all(Codec(name), [values.clamp(-127, 127)])


def test_the_first_of_equals_are_chosen() -> None:
    ones = torch.ones(5000)
    ones[::3] = -1
    few = torch.where(torch.arange(5000) % 7 == 0, 2.0, 0.25)
    for ratio in (0.0004, 0.1, 0.5):
        assert not of_all(named("topk", ratio=ratio), [ones, few, torch.cat([few, ones])])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_a_sample_misjudges_is_chosen_from_all(dtype: torch.dtype) -> None:
    """More are beyond its bound than there is room for; or fewer than are wanted, as only it has large ones."""
    few = torch.full((40000,), 1e-9, dtype=dtype)
    few[::1000] = torch.arange(1, 41, dtype=dtype)
    assert not of_all(named("topk", ratio=0.001), [torch.ones(40000, dtype=dtype), few])


def test_more_than_there_is_room_for_touches_nothing() -> None:
    """Places that nobody has written are no places."""
    values, room = torch.ones(5000), 3000
    places = torch.full((room,), 2**31 - 1, dtype=torch.int32)
    found = torch.tensor([5000], dtype=torch.int32)
    of = card_largest.Candidates(found, torch.zeros(room), places)
    into = torch.zeros(100, dtype=torch.int32), torch.zeros(100)
    card_largest.write_largest(values, of, 100, *into, True)
    assert bool((values == 1).all())
    assert not bool(into[0].any())


@pytest.mark.parametrize("bits", [2.0, 8.0, 16.0])
def test_exponents_of_numbers_of_any_size(bits: float) -> None:
    """At a power of two times the highest level, and on either side of it."""
    for size in (2.0**-140, 2.0**-126, 1.0, 2.0**100):
        edge = torch.tensor([(2.0 ** (bits - 1) - 1) * size])
        near = [edge, edge.nextafter(torch.tensor(0.0)), edge.nextafter(torch.tensor(3e38))]
        assert not of_all(named("fixed", bits=bits), [torch.cat([one, -one / 3]) for one in near])


class Card(torch.Tensor):
    """A tensor that says that it is on a card."""

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True


@pytest.mark.parametrize("name", NAMES)
def test_tensors_on_a_card_stay_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing goes by the host, and what a message speaks of is cleared where it lies."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(Card, "cpu", lambda tensor: pytest.fail("by way of the host"))
    codec, found = Codec(name), []
    for kind in (torch.Tensor, Card):
        left, into = numbers(2000, torch.float32).as_subclass(kind), torch.zeros(2000).as_subclass(kind)
        message = torch.zeros(room(codec, 2000, 4), dtype=torch.uint8).as_subclass(kind)
        kernel, momentum = kernel_of(codec), torch.ones(2000).as_subclass(kind)
        used = kernel.encode(left, message, 7, back=True)
        kernel.decode(message[:used], into)
        kernel.clear(message[:used], momentum)
        found.append([tensor.as_subclass(torch.Tensor) for tensor in (left, message, into, momentum)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
