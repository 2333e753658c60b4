"""What an operator takes for itself is what torch's allocator says."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import GRU, LSTM, Conv2d, Flatten, Linear, MaxPool2d, Sequential

from partita.cost.convolutions import CONVOLUTIONS, unfolded_bytes
from partita.cost.scratch import SCORES, WIDENED, Processor, scratch_bytes, working_bytes
from partita.graph.batch import substitute
from partita.graph.graph import Graph, Optimizer
from partita.graph.operator import Operator, Ref
from partita.graph.precision import shortened
from partita.graph.tensor import Tensor
from partita.lab.processor import processor_here
from partita.lowering.layout import buckets_of
from partita.plan.wire import Wire
from partita.runtime.draws import DRAWING, DRAWS
from partita.runtime.segment import mixed, resolve
from partita.zoo.convolutional import digits_cnn
from partita.zoo.tasks import on_digits
from tests.captures import capture
from tests.cost.allocated import taken_by
from tests.small import two_layers

BATCH, PAGE = 16, 4096


def taken(operator: Operator, graph: Graph) -> int:
    """Bytes at the peak of a call, less those of its results."""
    return taken_by(resolve(operator.target), [filled(graph, each) for each in operator.arguments])


def filled(graph: Graph, argument: Any) -> Any:
    """An argument with numbers where it is a tensor."""
    if not isinstance(argument, Ref):
        return argument
    tensor = graph.tensor(argument)
    if "float" not in tensor.dtype:
        return torch.zeros(tensor.size() * 2, dtype=torch.uint8).view(getattr(torch, tensor.dtype))
    return torch.randn(tensor.shape).to(getattr(torch, tensor.dtype))  # type: ignore[arg-type]


def test_convolutions_take_blocked_copies() -> None:
    graph = substitute(capture(on_digits("digits-cnn", digits_cnn, 0.1)), BATCH)
    found = [each for each in graph.operators if each.target.startswith(CONVOLUTIONS)]
    assert len(found) > 3
    for operator in found:
        expected = working_bytes(graph, operator, BATCH, processor_here())
        assert expected == pytest.approx(taken(operator, graph), rel=0.3, abs=4096), operator.name


def small_images() -> Sequential:
    """Convolutions of images that are larger than the kernel, and smaller."""
    return Sequential(
        *(Conv2d(1, 16, 3, 2), Conv2d(16, 32, 3, padding=1), MaxPool2d(3), Conv2d(32, 48, 3, padding=1)),
        *(Flatten(), Linear(48, 10)),
    )


def test_kernels_larger_than_the_image_take_what_this_processor_needs(one_thread: None) -> None:
    graph = substitute(capture(on_digits("small-images", small_images, 0.1)), BATCH)
    found = [each for each in graph.operators if each.target.startswith(CONVOLUTIONS)]
    assert len(found) == 6
    for operator in found[1:-1]:  # a single channel is filled up to eight
        expected = working_bytes(graph, operator, BATCH, processor_here())
        assert expected == pytest.approx(taken(operator, graph), rel=0.05, abs=256), operator.name


@pytest.mark.parametrize(("kernel", "measured"), [(3, 599_296), (5, 1_664_256)])
def test_narrow_vectors_sum_unfolded_samples(kernel: int, measured: int) -> None:
    """What torch's allocator said on a processor with AVX2, for 64 channels on images of 2 x 2."""
    image, weight = Tensor((8, 64, 2, 2), "float32"), Tensor((64, 64, kernel, kernel), "float32")
    assert unfolded_bytes(image, image, weight) == pytest.approx(measured, abs=256)


def test_other_operators_take_nothing() -> None:
    graph = capture(on_digits("digits-cnn", digits_cnn, 0.1))
    others = [each for each in graph.operators if not each.target.startswith(CONVOLUTIONS)]
    assert not any(working_bytes(graph, each, BATCH) for each in others)


class Attending(torch.nn.Module):
    """Attention that drops weights: 4 heads, `length` places; nothing hidden, what comes later, or by a mask."""

    def __init__(self, length: int, hides: str) -> None:
        super().__init__()
        self.length, self.hides, self.rows, self.head = length, hides, Linear(1, 64), Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = x.flatten(1).repeat(1, self.length // 64).unsqueeze(-1)
        rows = self.rows(places).unflatten(-1, (4, 16)).transpose(1, 2)
        mask = x.new_zeros(self.length, self.length) - places[0].abs() if self.hides == "mask" else None
        made = torch.nn.functional.scaled_dot_product_attention(
            rows, rows, rows, mask, 0.1, is_causal=self.hides == "later"
        )
        return self.head(made.transpose(1, 2).flatten(2).mean(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("hides", ["", "later", "mask"])
@pytest.mark.parametrize("length", [64, 512])
def test_attention_that_drops_weights_takes_its_blocks(length: int, hides: str, one_thread: None) -> None:
    graph = substitute(capture(on_digits("attending", partial(Attending, length, hides), 0.1)), BATCH)
    found = [each for each in graph.operators if each.target in SCORES]
    assert len(found) == 2
    for operator in found:
        expected = working_bytes(graph, operator, BATCH, processor_here())
        given = [filled(graph, each) for each in operator.arguments]
        got = taken_by(partial(DRAWING[operator.target], {DRAWS: None}), given)
        assert expected == pytest.approx(got, rel=0.3), operator.name


class Recurrent(torch.nn.Module):
    """Two layers, one of which is narrower than what it reads; rows of 256 elements and of fewer."""

    def __init__(self, kind: type[LSTM] | type[GRU] = LSTM) -> None:
        super().__init__()
        self.first, self.second = kind(72, 256), kind(256, 40)
        self.head = Linear(40, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(len(x), 8, 8).permute(1, 0, 2).repeat(1, 1, 9)
        return self.head(self.second(self.first(rows)[0])[0][-1])  # type: ignore[no-any-return]


def test_an_lstm_takes_its_weights_and_gates_once_more() -> None:
    graph = substitute(capture(on_digits("recurrent", Recurrent, 0.1)), BATCH)
    found = [each for each in graph.operators if each.target.startswith("partita.lstm_layer")]
    assert len(found) == 4
    for operator in found:
        expected = working_bytes(graph, operator, BATCH, processor_here())
        call = resolve(operator.target)
        given = [filled(graph, each) for each in operator.arguments]
        assert expected == pytest.approx(taken_by(call, given), rel=0.05), operator.name
        for made, said in zip(call(*given), operator.outputs, strict=True):
            assert said is None or made.nbytes == pytest.approx(said.size(), rel=0.01, abs=3 * PAGE)


def test_an_lstm_in_bf16_takes_gradients_in_fp32() -> None:
    """And buffers of 80 to 100 kB, whatever its size; without AVX-512, of which oneDNN has its kernel, all of it."""
    graph = shortened(substitute(capture(on_digits("recurrent", Recurrent, 0.1)), BATCH), "bfloat16")
    found = [each for each in graph.operators if each.target.startswith("partita.lstm_layer")]
    assert len(found) == 4
    for operator in found:
        taken = taken_by(resolve(operator.target), [filled(graph, each) for each in operator.arguments])
        expected = working_bytes(graph, operator, BATCH, processor_here())
        assert expected == pytest.approx(taken, rel=0.1, abs=2**17), operator.name


@pytest.mark.parametrize(("kind", "short"), [(LSTM, "float16"), (GRU, "float16"), (GRU, "bfloat16")])
def test_a_recurrent_layer_of_a_short_dtype_without_a_kernel_takes_all_in_fp32(
    kind: type[LSTM] | type[GRU], short: str
) -> None:
    graph = shortened(substitute(capture(on_digits("recurrent", partial(Recurrent, kind), 0.1)), BATCH), short)
    found = [each for each in graph.operators if "_layer" in each.target and each.target.startswith("partita.")]
    assert len(found) == 4
    for operator in found:
        assert operator.outputs[0] is not None
        assert operator.outputs[0].dtype == short
        given = [filled(graph, each) for each in operator.arguments]
        assert not any(isinstance(each, torch.Tensor) and each.dtype is torch.float32 for each in given)
        if kind is GRU and "backward" in operator.target:  # of a workspace that is as large as it is said to be
            given = [each[: len(each) // 2] if getattr(each, "dtype", 0) is torch.uint8 else each for each in given]
        expected = working_bytes(graph, operator, BATCH, processor_here())
        assert expected == pytest.approx(taken_by(resolve(operator.target), given), rel=0.15), operator.name


def test_norms_of_short_rows_take_them_in_fp32() -> None:
    def model() -> Sequential:
        return Sequential(Flatten(), Linear(64, 4096), torch.nn.LayerNorm(4096), Linear(4096, 10))

    graph = shortened(substitute(capture(on_digits("rows", model, 0.1)), 8 * BATCH), "bfloat16")
    found = [operator for operator in graph.operators if operator.target in WIDENED]
    assert len(found) == 2
    for operator in found:
        call = resolve(operator.target, mixed=mixed(graph, operator))
        given = [filled(graph, each) for each in operator.arguments]
        assert working_bytes(graph, operator, 8 * BATCH) == pytest.approx(taken_by(call, given), rel=0.1), operator.name


def test_a_step_in_one_pass_takes_nothing_on_a_processor() -> None:
    adam = Optimizer("AdamW", (("exp_avg", 1.0, "float32"), ("exp_avg_sq", 1.0, "float32")))
    graph = replace(two_layers(), optimizer=adam)
    once = replace(graph, optimizer=replace(adam, one_pass=True))
    (bucket,) = buckets_of(graph, Wire(bucket_bytes=2**20))
    ten, one = (scratch_bytes(each, bucket, Processor.WIDE) for each in (graph, once))
    assert (ten, one) == (2 * bucket.size, 0)
    assert scratch_bytes(once, bucket, Processor.CARD) == scratch_bytes(graph, bucket, Processor.CARD) > 0
