"""How fast tensor cores are in a format that is not of half precision."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.cluster.text import shipped_device
from partita.cost.kernels import ISSUE, LASTING, issue_of, multiplying, peak_of, rate_of
from partita.graph.contraction import Contraction


def test_tf32_sags_as_half_precision_does() -> None:
    """The same cores at the same power: the best product in TF32 that was published of an H100, and steps of hours."""
    card = replace(shipped_device("h100-sxm"), sustained=())
    assert rate_of(card, "float32", tf32=True) == pytest.approx(403.7e12, rel=0.01)
    assert issue_of(card, "tf32") == issue_of(card, "bf16") < ISSUE
    product = Contraction(1.0, 1, 8192, 8192, 8192)
    assert multiplying(card, product, "float32", 4, convolution=True) > product.flops / (LASTING * 404e12)


@pytest.mark.parametrize(
    ("parts", "joule"),
    [(("a40", "a6000", "a10"), 0.406), (("l4", "l40s", "rtx6000-ada"), 0.76)],
)
def test_what_power_limits_computes_as_much_a_joule_as_others_of_its_generation(
    parts: tuple[str, ...], joule: float
) -> None:
    """TFLOP a joule in bf16, boards of 72 to 350 W: the last of each by the others' products, and none by its peak."""
    for part in parts:
        card = shipped_device(part)
        assert rate_of(card, "bfloat16") / card.power == pytest.approx(joule * 1e12, rel=0.06)
        assert rate_of(card, "bfloat16") < issue_of(card, "bf16") * peak_of(card, "bfloat16")


@pytest.mark.parametrize("part", ["a10", "a40", "l4", "h100-pcie", "rtx6000-ada"])
def test_tf32_takes_twice_the_energy_of_half_precision(part: str) -> None:
    card = shipped_device(part)
    assert 2 * rate_of(card, "float32", tf32=True) == pytest.approx(rate_of(card, "float16"), rel=0.06)
