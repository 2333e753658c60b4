"""The caching allocator by hand, and laws of what it holds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from partita.cost.allocator import Allocator

MIB = 2**20


def test_sizes_of_segments() -> None:
    """torch's constants: 2 MiB for what is small, 20 MiB below 10 MiB, steps of 2 MiB above."""
    for size, held in ((1, 2 * MIB), (MIB, 2 * MIB), (MIB + 1, 20 * MIB), (10 * MIB, 10 * MIB), (11 * MIB, 12 * MIB)):
        one = Allocator()
        one.take("x", size)
        assert one.held == held


def test_a_hole_that_nothing_fits_in_stays_held() -> None:
    """Logits in bf16, then two copies twice as large, then a third one: the freed logits' place is too small for it."""
    one = Allocator()
    one.take("logits", 100 * MIB)
    one.take("wide", 200 * MIB)
    one.take("softmax", 200 * MIB)
    one.give("wide")
    one.give("logits")
    one.take("loss", 200 * MIB)
    assert one.held == 500 * MIB
    one.take("gradient", 200 * MIB)
    assert one.held == 700 * MIB
    one.take("short", 100 * MIB)
    assert one.held == 700 * MIB


def test_neighbours_become_one_again() -> None:
    one = Allocator()
    for key in "abc":
        one.take(key, 4 * MIB)
    assert one.held == 20 * MIB
    for key in "bac":
        one.give(key)
    one.take("whole", 20 * MIB)
    assert one.held == 20 * MIB


@given(st.lists(st.tuples(st.integers(1, 40 * MIB), st.integers(0, 9)), max_size=40))
@settings(deadline=None, derandomize=True)
def test_held_is_never_below_what_is_there(moves: list[tuple[int, int]]) -> None:
    one, sizes = Allocator(), dict[int, int]()
    for size, key in moves:
        if key in sizes:
            one.give(key)
            del sizes[key]
        else:
            one.take(key, size)
            sizes[key] = size
        assert one.held >= sum(block.size for block in one.given.values()) >= sum(sizes.values())
    for key in sizes:
        one.give(key)
    assert sum(size for free in one.free.values() for size, _ in free) == one.held
