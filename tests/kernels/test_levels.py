"""What the catalogue promises of codecs that round to levels, at random or to the nearest."""

from __future__ import annotations

from itertools import pairwise
from math import ceil

import pytest
import torch

from partita.kernels.codecs import kernel_of
from partita.kernels.plain import decoded, encoded
from partita.kernels.tree import BOOK
from partita.plan.wire import Codec
from partita.wire.codec import coded_size, room, settings_of
from partita.wire.elias import expected_bits
from partita.wire.interpreter import carried_out
from partita.wire.rings import ring
from partita.wire.schedule import even_edges
from tests.kernels.agreement import named, normal

DRAWS = 3000


def said(codec: Codec, values: torch.Tensor, key: int = 0) -> tuple[torch.Tensor, int]:
    """(what is understood of the values, bytes)."""
    kernel, message = kernel_of(codec), torch.zeros(room(codec, len(values), values.element_size()), dtype=torch.uint8)
    used = kernel.encode(values.clone(), message, key)
    found = torch.empty_like(values)
    kernel.decode(message[:used], found)
    return found, used


def worst(total: torch.Tensor, values: torch.Tensor, step: torch.Tensor | float) -> float:
    """The largest distance of a mean over DRAWS from its number, in 6 of its exact standard deviations where levels are
    `step` apart."""
    place = values.abs() / step
    sigma = step * ((place - place.floor()) * (place.ceil() - place)).sqrt() / DRAWS**0.5
    return float(((total / DRAWS - values).abs() / (6 * sigma + 1e-7 * values.abs() + 1e-12)).max())


def check_unbiased(codec: Codec, values: torch.Tensor, step: torch.Tensor | float) -> None:
    """The mean over draws is the number; to the nearest level it is not."""
    total = sum((said(codec, values, key)[0] for key in range(DRAWS)), torch.zeros_like(values))
    assert worst(total, values, step) <= 1
    assert worst(torch.round(values / step) * step * DRAWS, values, step) > 1


def test_fixed_point_is_right_in_the_mean() -> None:
    """QU-02: rounded at random, 6 sigma for each; the nearest is found out. Bytes: 4 and `bits` a number."""
    values = normal(64)
    values[0] = 3.0
    check_unbiased(named("fixed", bits=5), values, 0.25)
    assert said(named("fixed", bits=5), values)[1] == 4 + ceil(64 * 5 / 8)


def test_small_updates_move_the_mean() -> None:
    """QU-02: a hundredth of a step is lost to the nearest level, and not at random."""
    step = 2.0**-6
    values = torch.full((200_000,), step / 100, dtype=torch.float64)
    values[0] = 1.9
    found, _ = said(named("fixed", bits=8), values)
    assert abs(float(found[1:].mean()) / (step / 100) - 1) < 0.15
    assert not torch.round(values[1:] / step).any()


def test_the_scale_follows_the_overflow_rate() -> None:
    """QU-02: dynamic fixed point settles where doubling its range is not needed and halving it would be: at most r of
    all are saturated, more would be at half the scale; scales differ by powers of two."""
    rate, bits = 0.01, 6
    for growth in range(8):
        values = normal(10_000, growth) * 1.7**growth
        message = encoded("fixed", values, settings_of(named("fixed", bits=bits, overflow=rate)))
        assert torch.equal(message, encoded_by_kernel(named("fixed", bits=bits, overflow=rate), values))
        most = 31 * 2.0 ** int(message[:4].view(torch.int32))
        assert float((values.abs() > most).double().mean()) <= rate < float((values.abs() > most / 2).double().mean())


def encoded_by_kernel(codec: Codec, values: torch.Tensor) -> torch.Tensor:
    message = torch.zeros(room(codec, len(values), values.element_size()), dtype=torch.uint8)
    return message[: kernel_of(codec).encode(values.clone(), message, 0)]


def test_the_tree_says_its_own_numbers() -> None:
    """QU-04: a round trip of every codebook value is exact; bytes n + 4; zero stays zero and no sign is turned."""
    for dtype in (torch.float32, torch.float64):
        book = torch.tensor(BOOK).to(dtype)
        values = torch.cat([book, -book])
        found, used = said(named("dettmers8"), values)
        assert torch.equal(found, values)
        assert used == len(values) + 4
    values = normal(5000) ** 5
    found, _ = said(named("dettmers8"), values)
    assert bool((found * values >= 0).all())


@pytest.mark.parametrize("sigma", [1.0, 2.0, 3.0])
def test_the_tree_beats_equal_steps(sigma: float) -> None:
    """QU-04: mean relative error on log-normal numbers."""
    values = torch.exp(sigma * normal(5000)) * torch.where(normal(5000, 1) < 0, -1, 1)
    tree, line = said(named("dettmers8"), values)[0], said(Codec("q8"), values)[0]
    errors = [float(((found - values).abs() / values.abs()).mean()) for found in (tree, line)]
    assert errors[0] < errors[1]


@pytest.mark.parametrize("dense", [0.0, 1.0])
def test_qsgd_is_right_in_the_mean(dense: float) -> None:
    """QU-07: levels of the group's length, 6 sigma for each; the nearest is found out."""
    values = normal(64)
    step = float(values.norm().float()) / 4
    check_unbiased(named("qsgd", levels=4, group=64, dense=dense), values, step)


@pytest.mark.parametrize(("group", "levels"), [(256, 4), (256, 1), (64, 8)])
def test_the_variance_of_qsgd_is_bounded(group: int, levels: int) -> None:
    """QU-07: E |Q - v|^2 <= min(d / s^2, sqrt(d) / s) |v|^2."""
    values, codec = normal(group), named("qsgd", levels=levels, group=group)
    errors = [float((said(codec, values, key)[0] - values).norm() ** 2) for key in range(300)]
    bound = min(group / levels**2, group**0.5 / levels)
    assert sum(errors) / 300 / float(values.norm() ** 2) <= bound


def test_the_bits_of_qsgd() -> None:
    """QU-07: at s = sqrt(d), gaps and levels of normal numbers take at most 2.8 d + 32 bits, levels of any numbers at
    most d + 3 s |v|_1 / |v|_2 + 32 <= 4 d + 32; what planning expects is what is sent."""
    d = 256
    values = normal(64 * d)
    for dense, most in ((0.0, 2.8 * d + 32), (1.0, 4 * d + 32)):
        codec = named("qsgd", levels=16, group=d, dense=dense)
        bits = 8 * said(codec, values)[1] / 64
        assert bits <= most
        assert bits == pytest.approx(8 * coded_size(codec, len(values), 8) / 64, rel=0.02)
    for v in (normal(d) ** 7, torch.ones(d).double(), torch.eye(1, d).double()[0]):
        bits = sum(8 * said(named("qsgd", levels=16, group=d, dense=1), v, key)[1] - 7 for key in range(100)) / 100
        assert bits <= d + 3 * 16 * float(v.abs().sum() / v.norm()) + 32 <= 4 * d + 32


def test_gaps_are_shorter_where_little_is_sent() -> None:
    """QU-07: s = 1 sends about sqrt(d) of d numbers."""
    assert expected_bits(1, 512, False) < 0.5 < 1.0 < expected_bits(1, 512, True)


def test_dorefa_is_right_in_the_mean() -> None:
    """QU-11: noise of one level before the nearest is taken; at most 2^k levels; 32 bits are nearly the number."""
    values = normal(64)
    scale = float(values.abs().max().float())
    step = 2 * scale / 15
    shifted = values + scale
    codec = named("dorefa", bits=4)
    total = sum((said(codec, values, key)[0] + scale for key in range(DRAWS)), torch.zeros_like(values))
    inner = shifted < 2 * scale * (1 - 1e-6)
    assert worst(total[inner], shifted[inner], step) <= 1
    assert worst(torch.round(shifted[inner] / step) * step * DRAWS, shifted[inner], step) > 1
    levels = torch.cat([said(codec, values, key)[0] for key in range(50)]).unique()
    assert len(levels) == 16
    assert torch.allclose(said(named("dorefa", bits=32), values)[0], values, rtol=0, atol=1e-8)
    assert said(codec, values)[1] == 4 + 32


def test_ranges_keep_an_absolute_error() -> None:
    """QU-14: |decode - g| <= bound below 1, exact from 1 on; two bits a number, and 0, 1, 2 or 4 bytes of it."""
    bound = 2.0**-10
    values = torch.cat([normal(2000) * scale for scale in (1e-4, 1e-2, 0.3, 3.0)]).float()
    found, used = said(named("inceptionn", bound=bound), values)
    small = values.abs() < 1
    assert float((found - values)[small].abs().max()) <= bound
    assert torch.equal(found[~small], values[~small])
    sizes = torch.where(found == 0, 0, torch.where((found / (2 * bound)).round().abs() <= 127, 1, 2))
    assert used == 2000 + int(torch.where(small, sizes, 4).sum())


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_ranges_in_every_hop_err_by_the_hops(ranks: int) -> None:
    """QU-14: a ring that encodes each of its messages errs by p bounds at most."""
    bound, settings = 2.0**-8, settings_of(named("inceptionn", bound=2.0**-8))
    vectors = [normal(60, rank) * 0.05 for rank in range(ranks)]
    edges = even_edges(60, ranks)

    def code(value: torch.Tensor, rank: int, part: int) -> torch.Tensor:
        return decoded("inceptionn", encoded("inceptionn", value, settings), value, settings)

    ends = carried_out(ring(ranks), [[v[a:b] for a, b in pairwise(edges)] for v in vectors], code)
    error = (torch.cat(ends[0]) - torch.stack(vectors).sum(0)).abs().max()
    assert 0 < float(error) <= ranks * bound
    assert all(torch.equal(torch.cat(end), torch.cat(ends[0])) for end in ends)


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_eight_bits_in_every_hop_err_by_their_steps(ranks: int) -> None:
    """QU-15: a ring that quantises each of its messages ends with the same bits on all ranks, and errs in each part by
    m / 254 of every message on its way at most."""
    vectors, edges, most = [normal(60, rank) for rank in range(ranks)], even_edges(60, ranks), [0.0] * ranks

    def code(value: torch.Tensor, rank: int, part: int) -> torch.Tensor:
        most[part] += float(value.abs().max()) / 254 * (1 + 1e-5)
        return decoded("q8", encoded("q8", value, {}), value, {})

    ends = carried_out(ring(ranks), [[v[a:b] for a, b in pairwise(edges)] for v in vectors], code)
    for part, (a, b) in enumerate(pairwise(edges)):
        error = (ends[0][part] - torch.stack(vectors)[:, a:b].sum(0)).abs().max()
        assert 0 < float(error) <= most[part]
    assert all(torch.equal(torch.cat(end), torch.cat(ends[0])) for end in ends)
