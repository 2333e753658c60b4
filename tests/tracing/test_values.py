"""What a large tensor holds is what it would hold if it were made, whatever it is made of."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from partita.tracing import values
from partita.tracing.boxes import Box, all_of, sizes_of, within
from partita.tracing.causal import hidden
from partita.tracing.large import Large
from partita.tracing.values import Boxes, TooLarge, made, whole

LOW = torch.finfo(torch.float32).min


class Mirror(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes every tensor, and beside it the value that is known without making it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kept: list[Any] = []
        self.values: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        arguments, keywords = tree_map(lambda one: self.values.get(id(one), one), (args, kwargs or {}))
        self.kept.append(result)
        self.values[id(result)] = made(func, arguments, keywords, result)
        return result


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "SMALL", 9)
    monkeypatch.setattr(values, "TILE", 4)


def numbers(draw: Callable[..., int], rows: int, columns: int) -> Tensor:
    """Whole numbers, or others, of places in rows and columns."""
    q, k = torch.arange(rows)[:, None], torch.arange(columns)[None]
    shift, other = draw(-3, 3), draw(-2, 8)
    return [
        lambda: q + shift, lambda: k, lambda: k - q, lambda: (q - k).abs(), lambda: k // 3, lambda: q * shift + k,
        lambda: torch.where(q < other, k, q), lambda: torch.minimum(k, q + shift), lambda: (k - q).double() / 2,
        lambda: torch.full((rows, columns), shift), lambda: torch.arange(other + 5)[q.expand(rows, columns) % 3],
        lambda: (k == q).long().cumsum(-1), lambda: (k - q).float() * 0.5, lambda: -k, lambda: shift - q,
        lambda: (q - k).float().masked_fill(k == other, float("inf")) * 0.0,
    ][draw(0, 15)]()  # fmt: skip


def some(draw: Callable[..., int], rows: int, columns: int, depth: int = 3) -> Tensor:
    """A mask of positions."""
    if depth == 0 or draw(0, 5) == 0:
        orders: list[Any] = [torch.le, torch.lt, torch.ge, torch.gt, torch.eq, torch.ne]
        return orders[draw(0, 5)](numbers(draw, rows, columns), numbers(draw, rows, columns)).expand(rows, columns)  # type: ignore[no-any-return]
    one = some(draw, rows, columns, depth - 1)

    def again() -> Tensor:
        return some(draw, rows, columns, depth - 1)

    cut = draw(0, rows - 1)
    return [
        lambda: one & again(), lambda: one | again(), lambda: ~one, lambda: one ^ again(), lambda: one,
        lambda: one.tril(cut), lambda: torch.triu(one, -cut), lambda: torch.where(again(), one, again()),
        lambda: torch.cat([one[:cut], again()[cut:]]), lambda: some(draw, columns, rows, depth - 1).T,
        lambda: some(draw, rows + 2, 2 * columns, depth - 1)[1:-1, ::2], lambda: one.flatten().view(rows, columns),
        lambda: torch.stack([again(), one])[1], lambda: one * again(), lambda: torch.logical_and(one, again()),
        lambda: one.masked_fill(again(), False), lambda: one.float() == again().float(), lambda: one.flip(0),
        lambda: one & torch.ones_like(one) & one.new_ones(()),
    ][draw(0, 18)]()  # fmt: skip


def masks(draw: Callable[..., int]) -> Tensor:
    """A mask that attention may be given, often causal or nearly so."""
    rows = draw(1, 9)
    columns = rows if draw(0, 3) else draw(1, 9)
    mask = some(draw, rows, columns)
    causal = torch.arange(columns) <= torch.arange(rows)[:, None]
    mask = [lambda: mask, lambda: causal, lambda: causal | mask, lambda: causal & mask, lambda: mask | ~mask][
        draw(0, 4)
    ]()
    samples = [lambda: mask, lambda: mask[None, None].expand(2, -1, -1, -1), lambda: torch.stack([mask, mask])]
    mask = samples[draw(0, 2)]()
    return [
        lambda: mask, lambda: torch.where(mask, 0.0, -torch.inf), lambda: (1.0 - mask.float()) * LOW,
        lambda: torch.zeros(mask.shape).masked_fill(~mask, LOW), lambda: torch.where(mask, 0.5, -torch.inf),
        lambda: torch.full((rows, rows), -torch.inf).triu(1), lambda: (1.0 - mask.float()) * -torch.inf,
    ][draw(0, 6)]()  # fmt: skip


def plainly_hidden(mask: Tensor) -> str:
    seen = mask if mask.dtype is torch.bool else mask == 0
    gone = ~mask if mask.dtype is torch.bool else mask <= torch.finfo(mask.dtype).min
    if bool(seen.all()):
        return "nothing"
    below = torch.ones(mask.shape[-2:], dtype=torch.bool).tril()
    return "later" if below.shape[0] == below.shape[1] and bool(torch.where(below, seen, gone).all()) else ""


@pytest.mark.usefixtures("tiny")
@settings(max_examples=25)
@given(st.data())
def test_masks_hide_what_they_would_if_they_were_made(data: st.DataObject) -> None:
    def draw(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    with Mirror() as mirror:
        mask = masks(draw)
        every, anywhere = (mask == 0).all(), (mask == 0).any()
    value = mirror.values[id(mask)]
    assert torch.equal(whole(value).nan_to_num(7), mask.nan_to_num(7))
    assert hidden(value) == plainly_hidden(mask)
    for result in (every, anywhere):
        assert bool(mirror.values[id(result)]) is bool(result)
    for tensor in mirror.kept:
        within_bounds(mirror.values[id(tensor)], tensor, data)


def within_bounds(value: Any, tensor: Tensor, data: st.DataObject) -> None:
    """A box of any value lies within the bounds that are known of it."""
    if not isinstance(value, Large):
        return
    ends = [sorted(data.draw(st.lists(st.integers(0, n), min_size=2, max_size=2, unique=True))) for n in value.shape]
    agrees(value, tensor, tuple((first, last) for first, last in ends))


def agrees(value: Large, tensor: Tensor, box: Box) -> None:
    piece = within(tensor, box)
    assert Boxes(value).part(value, box).dtype == tensor.dtype
    assert torch.equal(Boxes(value).part(value, box).nan_to_num(7), piece.nan_to_num(7))
    if found := Boxes(value).bound(value, box):
        assert found[0].dtype == tensor.dtype
        assert [each.numel() for each in found] == [1, 1]
        assert bool(((found[0] <= piece) & (piece <= found[1])).all())


short = partial(torch.arange, dtype=torch.int32)
TAKEN: dict[str, Callable[[Tensor], Tensor]] = {
    "from behind": lambda x: x[-3:, -5:-1], "every other": lambda x: x[1:, ::2], "every third": lambda x: x[:, 2::3],
    "a row": lambda x: x.select(-2, -1), "a column": lambda x: x.select(-1, -3), "turned": lambda x: x.transpose(-1, 0),
    "a cycle": lambda x: x[..., None].expand(5, 7, 3).permute(1, 2, 0), "shape": lambda x: x.view(7, 5),
    "from behind a cycle": lambda x: x[..., None].expand(5, 7, 3).permute(-1, 0, -2),
    "bits": lambda x: x.view(torch.double),
    "flat": lambda x: x.flatten(), "joined": lambda x: x.view(5, 7, 1).expand(5, 7, 2).reshape(5, 14),
    "one more": lambda x: x.unsqueeze(1).squeeze(1), "below": lambda x: x.tril(-2), "above": lambda x: x.triu(2),
    "all below": lambda x: x.tril(6), "all above": lambda x: x.triu(-4), "diagonal": lambda x: x.tril() + x.triu(),
    "beside": lambda x: torch.cat([x, x.double(), x], -1), "under": lambda x: torch.cat([x[:2], x]),
    "looked up": lambda x: x[torch.arange(5)[:, None], torch.arange(7)[None] % 3],
    "by a mask": lambda x: x[(torch.arange(5) != 2)[:, None].expand(5, 7)],
    "like it": lambda x: torch.full_like(x, 3, memory_format=torch.contiguous_format),
    "new": lambda x: x.new_full((5, 7), 2),
    "to bool": lambda x: (x - 17).bool(), "to bytes": lambda x: (x * 50).to(torch.int8), "to float": lambda x: x.half(),
    "short": lambda _: (short(5)[:, None] + 2**13 - 2) * (short(7) + 2**18),
    "far apart": lambda x: x.add(x, alpha=2**60),
    "no number": lambda x: (y := x.double().masked_fill(x > 20, -torch.inf)) - y.flip(0),
    "mirrored": lambda x: x.flip(1),
}  # fmt: skip


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("name", TAKEN)
def test_every_box_of_it_holds_what_it_would_if_it_were_made(name: str) -> None:
    with Mirror() as mirror:
        mirror.kept.append(TAKEN[name](torch.arange(5)[:, None] * 7 + torch.arange(7)))
    for tensor in mirror.kept:
        value = mirror.values[id(tensor)]
        assert torch.equal(whole(value).nan_to_num(7), tensor.nan_to_num(7))
        if isinstance(value, Large):
            for box in product(*({(0, n), (0, 1), (n - 1, n), (n // 3, n // 2 + 1)} for n in value.shape)):
                agrees(value, tensor, box)


@pytest.mark.usefixtures("tiny")
def test_a_mask_of_numbers_with_a_part_of_truths_is_one_of_numbers() -> None:
    """True adds one to a score."""
    with Mirror() as mirror:
        places = torch.arange(6)[:, None] + torch.arange(4)
        mask = torch.cat([places >= 0, places.float() * 0.0], -1)
    assert hidden(mirror.values[id(mask)]) == plainly_hidden(mask) == ""


BIASES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "large": lambda q, k: torch.where(k <= q, 0.0, -1e4),
    "of distance": lambda q, k: torch.minimum(k - q, k - k).float(),
    "ahead": lambda q, k: torch.maximum(k - q, k - k).float(), "of fewer keys": lambda q, k: (k <= q)[:, :7],
    "of more keys": lambda q, k: (k <= q)[:7],
}  # fmt: skip


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("name", BIASES)
def test_what_is_nearly_causal_is_not(name: str) -> None:
    with Mirror() as mirror:
        mask = BIASES[name](torch.arange(9)[:, None], torch.arange(9)[None])
    assert hidden(mirror.values[id(mask)]) == plainly_hidden(mask) == ""


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the largest tensor that is made."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.device.type != "meta":
            self.size = max(self.size, result.untyped_storage().nbytes())
        return result


def large(function: Any, *arguments: Any, dtype: torch.dtype = torch.bool, length: int = 2**14) -> Any:
    return made(function, arguments, {}, torch.empty(length, length, dtype=dtype, device="meta"))


aten = torch.ops.aten


@pytest.mark.parametrize(("window", "hides"), [(2**14, "later"), (2**14 - 1, ""), (512, "")])
def test_a_mask_of_many_places_is_known_by_few(window: int, hides: str) -> None:
    """16,384 x 16,384 places, of which a window that is one place too short leaves out one."""
    k, q = torch.arange(2**14)[None], torch.arange(2**14)[:, None]
    with Largest() as most:
        mask = large(aten.bitwise_and.Tensor, large(aten.le.Tensor, k, q), large(aten.gt.Tensor, k, q - window))
        assert hidden(mask) == hides
    assert most.size <= 2**19


def test_a_triangle_of_many_places_is_compared_with_another() -> None:
    hiding = large(aten.full.default, [2**14, 2**14], -torch.inf, dtype=torch.float32)
    one, other = (large(aten.triu.default, hiding, diagonal, dtype=torch.float32) for diagonal in (1, 2))
    scalar = torch.empty((), dtype=torch.bool)
    for second, same in ((one, True), (other, False)):
        assert bool(made(aten.all.default, (large(aten.eq.Tensor, one, second),), {}, scalar)) is same


def test_what_would_take_much_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of remainders no bounds are known: each place would be looked at."""
    k, q = torch.arange(2**14)[None], torch.arange(2**14)[:, None]
    apart = large(aten.remainder.Tensor, k, q + 1, dtype=torch.int64)
    monkeypatch.setattr(values, "WORK", 2**20)
    with pytest.raises(TooLarge, match="16384 x 16384"):
        hidden(large(aten.ge.Scalar, apart, 0))
    with pytest.raises(TooLarge):
        large(aten.cumsum.default, apart, 0, dtype=torch.int64)


def test_bounds_know_of_no_number_and_of_overflow() -> None:
    """Between -1 and 1 times infinity there is 0 times infinity."""
    place = torch.arange(-2, 2**14 - 2)
    apart = large(aten.add.Tensor, place[None], place[:, None], dtype=torch.int64)
    short = large(aten.add.Tensor, place[None].float(), place[:, None], dtype=torch.float32)
    far = large(aten.mul.Tensor, short, torch.inf, dtype=torch.float32)
    past = large(aten.mul.Tensor, apart, 2**62, dtype=torch.int64)
    box = ((0, 9), (0, 9))
    low, high = Boxes(apart).bound(apart, box) or ()
    assert (int(low), int(high)) == (-4, 12)
    for value in (far, past):
        assert Boxes(value).bound(value, box) is None


def test_the_boxes_of_a_value_make_it_up() -> None:
    ones = large(aten.full.default, [2**14, 2**14], 1.0, dtype=torch.float32)
    boxes, seen = Boxes(ones), 0
    for box, low, high in boxes:
        assert float(low) == float(high) == 1.0
        rows, columns = sizes_of(box)
        if rows * columns > 2**22:
            boxes.split(box)
        else:
            seen += rows * columns
    assert (seen, sizes_of(all_of(ones))) == (2**28, (2**14, 2**14))
