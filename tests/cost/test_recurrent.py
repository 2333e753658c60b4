"""What a recurrent layer takes on an accelerator by its data sheet: steps wait for each other, weights do not."""

from __future__ import annotations

import pytest

from partita.cluster.cluster import Device
from partita.cluster.text import shipped_device
from partita.cost.datasheet import operator_seconds
from partita.cost.kernels import KERNEL, STEP, multiplying, recurring, streaming
from partita.graph.contraction import Contraction, contractions_of
from partita.graph.graph import Graph
from tests.graph.test_flops import hand_made

T, N, H = 50, 16, 1536
LAYER = [(T, N, H), (4 * H, H), (4 * H, H), (4 * H,), (4 * H,), (N, H), (N, H)]


def layer(*, backward: bool = False) -> Graph:
    """An LSTM's layer of as many features as it reads, either pass."""
    ends = [(T, N, H), (N, H), (N, H)]
    if backward:
        return hand_made("partita.lstm_layer_backward.default", [*LAYER, *ends, (99,), *ends], LAYER, False)
    return hand_made("partita.lstm_layer.default", LAYER, [*ends, (99,)], False)


def test_gradients_of_weights_are_one_product_each() -> None:
    graph = layer(backward=True)
    steps, inputs, first, hidden = contractions_of(graph.operators[0], graph, N)
    assert steps == Contraction(T, 1, N, H, 4 * H)
    assert inputs == Contraction(1.0, 1, T * N, H, 4 * H)
    assert first == hidden == Contraction(1.0, 1, 4 * H, H, T * N)
    forward = layer()
    ahead, *each = contractions_of(forward.operators[0], forward, N)
    assert (ahead, each) == (Contraction(1.0, 1, T * N, 4 * H, H), [Contraction(T, 1, N, 4 * H, H)])


@pytest.mark.parametrize(
    ("part", "shape", "dtype", "measured"),
    [
        ("v100-sxm2", (256, 16, 150), "float16", 27.1), ("p100-pcie", (256, 16, 150), "float32", 28.7),
        ("gtx1080ti", (256, 16, 150), "float32", 24.8), ("v100-sxm2", (4096, 16, 25), "float16", 223.2),
        ("v100-sxm2", (2048, 32, 25), "float16", 87.9), ("v100-sxm2", (1024, 32, 1500), "float16", 26.8),
    ],
)  # fmt: skip
def test_a_step_waits_for_the_one_before(part: str, shape: tuple[int, int, int], dtype: str, measured: float) -> None:
    """Microseconds of a step of LSTMs (of the last, of a GRU) as DeepBench's tables have them (results/train of
    baidu-research/DeepBench): kernels one after the other where a layer is small, weights from memory where large."""
    card, (size, samples, steps) = shipped_device(part), shape
    gates, item = 3 if steps == 1500 else 4, 2 if dtype == "float16" else 4
    took = recurring(card, Contraction(steps, 1, samples, gates * size, size), dtype, item) / steps
    assert took >= max(STEP, streaming(card, item * gates * size * size))
    assert took * 1e6 == pytest.approx(measured, rel=0.45)


def test_a_layer_is_in_tf32_as_pytorch_has_it() -> None:
    """`torch.backends.cudnn.rnn.fp32_precision` is TF32 unless it is told not to be, whatever products are in."""
    graph, flops = layer(), (("fp32", 14e12), ("tf32", 60e12))
    fast, slow = (
        Device("card", "cuda", each, memory_bandwidth=900e9, multiprocessors=80) for each in (flops, flops[:1])
    )
    products = contractions_of(graph.operators[0], graph, N)
    for card in (fast, slow):
        expected = sum(recurring(card, each, "float32", 4) for each in products)
        assert operator_seconds(card, graph.operators[0], graph, N) == pytest.approx(expected + KERNEL * len(products))
    ahead = products[0]
    assert recurring(fast, ahead, "float32", 4) == multiplying(fast, ahead, "float32", 4, tf32=True)
    assert recurring(fast, ahead, "float32", 4) < recurring(slow, ahead, "float32", 4)
