"""PM-01 on published times of products, which are not part of the project: skipped where the folder is absent."""

from __future__ import annotations

import csv
from pathlib import Path
from random import Random
from statistics import median

import pytest

from partita.cluster.cluster import Device
from partita.cost.kernels import KERNEL, multiplying, streaming
from partita.graph.contraction import Contraction

TABLE = Path(__file__).parents[3] / "shared" / "truth" / "neusight_gemm_conv_fp32.csv"
CARDS = {
    "Tesla V100-PCIE-32GB": Device(
        "v100", "cuda", (("fp32", 14e12),), memory_bandwidth=900e9, multiprocessors=80
    ),
    "NVIDIA A100-PCIE-40GB": Device(
        "a100", "cuda", (("fp32", 19.5e12),), memory_bandwidth=1555e9, multiprocessors=108
    ),
}  # fmt: skip


@pytest.mark.skipif(not TABLE.exists(), reason=f"{TABLE} is not here")
@pytest.mark.parametrize("name", CARDS)
def test_products_of_published_shapes(name: str) -> None:
    """Of shapes with all sides above 255 the median error is below 15 %, and 20 drawn ones are all within 50 %. The
    table's N is the depth and its K the columns, and its times have the launch in them, the least of all."""
    with TABLE.open() as file:
        rows = [row for row in csv.DictReader(file) if row["device"] == name and row["op"] == "linear"]
    launch = min(float(row["latency_ms"]) for row in rows) * 1e-3 - KERNEL
    errors = []
    for row in Random(0).sample(rows, 400):
        m, k, n = (int(row[side]) for side in "MNK")
        if min(m, n, k) >= 256:
            product, moved = Contraction(1.0, 1, m, n, k), 4 * (m * n + n * k + m * k)
            took = max(multiplying(CARDS[name], product, "float32", 4), streaming(CARDS[name], moved)) + KERNEL
            errors.append(abs((took + launch) / (float(row["latency_ms"]) * 1e-3) - 1))
    assert len(errors) > 200
    assert median(errors) < 0.15
    assert max(errors[:20]) < 0.5
