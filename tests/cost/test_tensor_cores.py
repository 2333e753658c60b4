"""How fast tensor cores are in a format that is not of half precision."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.cluster.text import shipped_device
from partita.cost.kernels import ISSUE, LASTING, issue_of, multiplying, rate_of
from partita.graph.contraction import Contraction


def test_tf32_sags_as_half_precision_does() -> None:
    """The same cores at the same power: the best product in TF32 that was published of an H100, and steps of hours."""
    card = replace(shipped_device("h100-sxm"), sustained=())
    assert rate_of(card, "float32", tf32=True) == pytest.approx(403.7e12, rel=0.01)
    assert issue_of(card, "tf32") == issue_of(card, "bf16") < ISSUE
    product = Contraction(1.0, 1, 8192, 8192, 8192)
    assert multiplying(card, product, "float32", 4, convolution=True) > product.flops / (LASTING * 404e12)
