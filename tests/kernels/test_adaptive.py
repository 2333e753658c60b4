"""What the catalogue promises of codecs that choose numbers by their neighbours."""

from __future__ import annotations

import pytest
import torch

from partita.kernels.codecs import kernel_of
from partita.kernels.plain import encoded
from partita.kernels.site import Site
from partita.plan.wire import Codec
from partita.wire.codec import room, settings_of
from tests.kernels.agreement import normal


def said(codec: Codec, values: torch.Tensor, fresh: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """(message, what is understood); the values keep the rest."""
    kernel, site = kernel_of(codec), Site(fresh=fresh)
    message = torch.zeros(room(codec, len(values), values.element_size()), dtype=torch.uint8)
    used = kernel.encode(values, message, 0, True, site)
    found = torch.empty_like(values)
    kernel.decode(message[:used], found, site=site)
    return message[:used], found


@pytest.mark.parametrize("ratio", [0.003, 0.01, 0.1])
def test_adaptive_chooses_about_its_ratio_of_each_sign(ratio: float) -> None:
    """QU-13: of a million numbers between 0.8 and 1.25 of what was asked for; each said as the mean of its class, which
    holds the largest."""
    values = normal(1_000_000) + 0.3
    before = values.clone()
    message, found = said(Codec("adaptive", settings=(("ratio", ratio),)), values)
    chosen = found != 0
    assert 0.8 * ratio <= float(chosen.double().mean()) <= 1.25 * ratio
    assert len(message) == 8 + 4 * int(chosen.sum())
    for side in (before > 0, before < 0):
        mine = chosen & side
        assert torch.allclose(found[mine], before[mine].mean(), rtol=1e-6)
        assert float(before[mine].abs().min()) >= float(before[side & ~chosen].abs().max())
    assert torch.equal(values, before - found)


def test_adaptive_looks_at_every_column() -> None:
    """Of a matrix whose every 16th column is 20 times as large, of which a sample at even steps would see nothing
    else."""
    values = normal(2**20).view(1024, 1024)
    values[:, ::16] *= 20
    codec = Codec("adaptive", settings=(("ratio", 0.02),))
    message, found = said(codec, values.clone().view(-1))
    assert 0.8 * 0.02 <= float((found != 0).double().mean()) <= 1.25 * 0.02
    assert torch.equal(message, encoded("adaptive", values.view(-1), settings_of(codec), 0))


def test_adacomp_sends_from_every_bin() -> None:
    """SP-04: at least one number of each bin that is not zero, where what is new has the sign of the whole at the bin's
    largest; each said as the mean of the bins' largest; bins decide by themselves."""
    codec, fresh = Codec("adacomp", settings=(("bin", 50.0),)), normal(1000)
    held = fresh * normal(1000, 1).abs()
    held[100:150] = fresh[100:150] = 0
    values = held + fresh
    before, bins = values.clone(), torch.split(values.clone(), 50)
    _, found = said(codec, values, fresh)
    counts = [int((part != 0).sum()) for part in torch.split(found, 50)]
    assert counts[2] == 0
    assert min(counts[:2] + counts[3:]) >= 1
    scale = torch.stack([part.abs().max() for part in bins]).mean()
    sent = found != 0
    assert torch.allclose(found[sent], before[sent].sign() * scale, rtol=1e-6)
    assert torch.equal(
        sent, before.ne(0) & ((before + fresh).abs() >= torch.cat([p.abs().max().expand(50) for p in bins]))
    )
    other = before.clone()
    other[500:] *= 3
    alone = said(codec, other, torch.cat([fresh[:500], fresh[500:] * 3]))[1]
    assert torch.equal(alone[:500] != 0, sent[:500])


def test_adacomp_sends_more_where_the_new_outweighs_the_old() -> None:
    """SP-04: a large step on a small residue is sent in more places than a small step on a large residue."""
    codec, large, small = Codec("adacomp"), normal(20_000), normal(20_000, 1) * 0.01
    counts = [int((said(codec, large + small, fresh)[1] != 0).sum()) for fresh in (large, small)]
    assert counts[0] > 3 * counts[1] > 0


def test_adacomp_with_what_is_new_equals_its_plain_twin() -> None:
    codec = Codec("adacomp", settings=(("bin", 30.0),))
    for count in (1, 29, 100, 4001):
        fresh = normal(count)
        values = fresh + normal(count, 1)
        twin = encoded("adacomp", values, settings_of(codec), 0, fresh)
        assert torch.equal(said(codec, values, fresh)[0], twin)


def test_adacomp_loses_nothing() -> None:
    """SP-04: what was sent and the residue are all that came."""
    codec, held, sent, came = Codec("adacomp"), *(torch.zeros(3000).double() for _ in range(3))
    for step in range(20):
        fresh = normal(3000, step)
        values = held + fresh
        sent += said(codec, values, fresh)[1]
        held, came = values, came + fresh
    assert torch.allclose(sent + held, came, rtol=0, atol=1e-11)
