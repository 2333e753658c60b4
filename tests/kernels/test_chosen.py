"""Choosing the largest numbers: the same ones as by sorting all, out of few candidates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.arrays import Array
from partita.kernels.chosen import SAMPLE, candidates, largest_places, spread

SIDE = 1024
RATIO = 0.01


def by_sorting(array: Array, k: int) -> Array:
    order = np.argsort(-np.abs(array), kind="stable")
    return np.sort(order[:k])


def columns(kept: Array) -> Array:
    """A matrix of which only these columns are not 0."""
    found = np.random.default_rng(0).standard_normal((SIDE, SIDE)).astype(np.float32)
    return np.ascontiguousarray(found * kept.astype(np.float32)).ravel()


def few_rows() -> Array:
    found = np.zeros((SIDE * 16, 64), np.float32)
    found[::40] = np.random.default_rng(1).standard_normal((len(found[::40]), 64))
    return found.ravel()


PLACES = np.arange(SIDE)
GRADIENTS = {
    "all": columns(PLACES >= 0),
    "columns that even steps miss": columns(PLACES % 16 != 0),
    "columns that even steps meet": columns(PLACES % 64 == 0),
    "columns that are larger where even steps look": columns(1.0 + 20.0 * (PLACES % 64 == 0)),
    "the first columns": columns(PLACES < SIDE // 2),
    "rows that grow": columns(PLACES >= 0) * np.repeat(np.linspace(0, 1, SIDE, dtype=np.float32), SIDE),
    "few rows": few_rows(),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_few_are_left_to_choose_from_whatever_the_columns(name: str) -> None:
    array, k = GRADIENTS[name], round(RATIO * GRADIENTS[name].size)
    assert k <= len(candidates(array, k)) <= 4 * k + SAMPLE
    assert np.array_equal(largest_places(array, k), by_sorting(array, k))


@given(st.integers(1, 400), st.data())
def test_the_largest_are_those_of_a_sort(n: int, data: st.DataObject) -> None:
    levels = data.draw(st.integers(1, 6))
    array = data.draw(st.lists(st.integers(-levels, levels), min_size=n, max_size=n).map(np.array)).astype(np.float32)
    k = data.draw(st.integers(1, n))
    assert np.array_equal(largest_places(array, k), by_sorting(array, k))


@pytest.mark.parametrize("n", [SAMPLE * 3 + 5, SAMPLE * 64])
@pytest.mark.parametrize("many", [0, 3, 4 * SAMPLE])
def test_zeros_and_equal_numbers_are_taken_in_order(n: int, many: int) -> None:
    array, k = np.zeros(n, np.float32), 2000
    array[-many - 1 : -1] = -0.5
    assert np.array_equal(largest_places(array, k), by_sorting(array, k))


def test_one_of_each_step_in_every_column() -> None:
    places = spread(SIDE * SIDE, 64)
    assert np.array_equal(places // 64, np.arange(SIDE * 16))
    counts = np.bincount(places % SIDE, minlength=SIDE)
    assert counts.min() > 8
    assert counts.max() < 32
