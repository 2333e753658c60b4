"""Counts against torch's own counter on real modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from partita.graph.contraction import contractions_of, scores_of
from partita.graph.flops import bytes_moved, flops, is_contraction
from partita.graph.graph import Graph, Parameter
from partita.graph.operator import Operator, Ref
from partita.graph.tensor import Affine, Tensor
from partita.task import Task
from partita.zoo.data import Image, Synthetic, Tokens
from partita.zoo.gpt import Gpt
from partita.zoo.resnet import Bottleneck
from partita.zoo.tasks import classify, predict
from partita.zoo.unet import UNet
from tests.captures import capture

BATCH = 6


def chain() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), Bottleneck(8, 4, 2), nn.Conv2d(16, 8, (3, 1), dilation=(2, 1)),
        nn.ReLU(), nn.Flatten(), nn.LazyLinear(10),
    )  # fmt: skip


def built(make: Any, sample: torch.Tensor) -> Any:
    def model() -> nn.Module:
        made = make()
        with torch.no_grad():
            made(sample[None].repeat(2, *[1] * sample.dim()))
        return made  # type: ignore[no-any-return]

    return model


MASKED = Synthetic(16, lambda generator: (torch.randn(3, 16, 16, generator=generator), torch.zeros(16, 16).long()))
IMAGES = Synthetic(16, Image(24, 10))
TASKS = {
    "flops-chain": Task("flops-chain", built(chain, IMAGES[0][0]), classify, IMAGES, torch.optim.SGD, 8),
    "flops-unet": Task("flops-unet", lambda: UNet((8, 16)), classify, MASKED, torch.optim.SGD, 8),
    "flops-gpt": Task(
        "flops-gpt", lambda: Gpt(16, 12, 24, 2, 2), predict, Synthetic(16, Tokens(12, 16)), torch.optim.SGD, 8
    ),
}


@pytest.mark.parametrize("name", TASKS)
def test_products_have_all_of_the_flops(name: str) -> None:
    """Rows, columns, depth and parts of what has products multiply out to what is counted; nothing causal is halved."""
    graph, seen = capture(TASKS[name]), 0
    for operator in graph.operators:
        found = contractions_of(operator, graph, BATCH)
        if found and "scaled_dot_product" not in operator.target:
            assert sum(one.flops for one in found) == pytest.approx(flops(operator, graph, BATCH)), operator
            seen += 1
        assert bool(found) == is_contraction(operator), operator
    assert seen


@pytest.mark.parametrize("name", TASKS)
def test_contractions_count_as_torch_counts(name: str) -> None:
    task = TASKS[name]
    graph = capture(task)
    model = task.model()
    batch = torch.utils.data.default_collate([task.data[i] for i in range(BATCH)])
    with FlopCounterMode(display=False) as counter:
        task.loss(model, batch).backward()
    ours = sum(
        flops(o, graph, BATCH) for o in graph.operators if is_contraction(o) and "attention" not in o.target
    )  # not the CPU's: torch leaves it out
    assert ours == counter.get_total_flops()


def hand_made(
    target: str, shapes: list[tuple[int | Affine, ...]], outputs: list[tuple[int | Affine, ...]], *rest: Any
) -> Graph:
    """A graph of one operator that reads parameters of these shapes."""
    parameters = tuple(Parameter(f"p{k}", Tensor(shape, "float32")) for k, shape in enumerate(shapes))
    operator = Operator(
        "op", target, (*(Ref(p.name) for p in parameters), *rest),
        outputs=tuple(Tensor(shape, "float32") for shape in outputs), several=len(outputs) > 1,
    )  # fmt: skip
    return Graph("one", 2, (operator,), parameters, (), (), (), Ref("op"), None, ())


@pytest.mark.parametrize(("causal", "part"), [(False, 1.0), (True, 0.5)])
def test_attention_counts_as_its_gpu_twin_does(causal: bool, part: float) -> None:
    """Its exponentials once either way, of a causal one half of them."""
    n, h, s, d = 2, 4, 16, 8
    one: tuple[int, ...] = (n, h, s, d)
    forward = hand_made(
        "aten._scaled_dot_product_flash_attention_for_cpu.default", [one] * 3, [one, (n, h, s)], 0.0, causal
    )
    assert scores_of(forward.operators[0], forward, 2) == part * n * h * s * s
    assert flops(forward.operators[0], forward, 2) == 2 * 2 * n * h * s * s * d
    backward = hand_made(
        "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
        [*[one] * 5, (n, h, s)],
        [one] * 3,
        0.0,
        causal,
    )
    assert scores_of(backward.operators[0], backward, 2) == part * n * h * s * s
    assert flops(backward.operators[0], backward, 2) == 5 * 2 * n * h * s * s * d


def test_groups_of_unlike_widths_are_counted_each_by_its_own() -> None:
    """Groups of 3 channels in and 2 out: 2 FLOPs a weight, sample and place; backward as many for each of two terms."""

    def model() -> nn.Module:
        groups = nn.Conv2d(12, 8, 3, padding=1, groups=4)
        return nn.Sequential(nn.Conv2d(3, 12, 1), groups, nn.Flatten(), nn.Linear(8 * 24 * 24, 10))

    graph = capture(Task("flops-groups", model, classify, IMAGES, torch.optim.SGD, 8))
    grouped = [o for o in graph.operators if "convolution" in o.target and 4 in o.arguments]
    once = 2 * BATCH * 24 * 24 * (8 * 3) * 9
    assert [flops(o, graph, BATCH) for o in grouped] == [once, 2 * once]


def test_flops_follow_the_batch() -> None:
    graph = hand_made("aten.mm.default", [(Affine(3), 5), (5, 7)], [(Affine(3), 7)])
    assert flops(graph.operators[0], graph, 4) == 2 * 12 * 5 * 7
    assert scores_of(graph.operators[0], graph, 4) == 0
    assert bytes_moved(graph.operators[0], graph, 4) == 4 * (12 * 5 + 5 * 7 + 12 * 7)


def test_views_move_nothing_and_unknown_operators_count_elements() -> None:
    view = hand_made("aten.t.default", [(3, 5)], [(5, 3)])
    assert bytes_moved(view.operators[0], view, 1) == 0
    assert flops(view.operators[0], view, 1) == 0
    unknown = hand_made("aten.no_such_thing.default", [(3, 5)], [(3, 5)])
    assert flops(unknown.operators[0], unknown, 1) == 15


def test_an_lstm_layer_counts_its_gates() -> None:
    t, n, i, h = 5, 3, 4, 6
    graph = hand_made(
        "partita.lstm_layer.default",
        [(t, n, i), (4 * h, i), (4 * h, h), (4 * h,), (4 * h,), (n, h), (n, h)],
        [(t, n, h), (n, h), (n, h), (99,)], False,
    )  # fmt: skip
    assert flops(graph.operators[0], graph, n) == 2 * t * n * 4 * h * (i + h)


class PerSample(nn.Module):
    """A kernel for each sample (StyleGAN2, dynamic convolution): as many groups as samples."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(5, 3, 3, 3)), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = len(x)
        weights = self.weight * self.scale(x.mean((2, 3)))[:, None, :, None, None]
        made = nn.functional.conv2d(x.reshape(1, -1, 8, 8), weights.flatten(0, 1), padding=1, groups=count)
        return made.view(count, -1)


def test_groups_for_each_sample_are_counted_for_any_number() -> None:
    task = Task(
        "per-sample", PerSample, lambda model, batch: model(batch[0]).mean(), Synthetic(64, Image(8, 10)),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1), 4,
    )  # fmt: skip
    graph = capture(task)
    work = [sum(flops(o, graph, batch) for o in graph.operators if is_contraction(o)) for batch in (4, 8)]
    assert work[1] == 2 * work[0] > 2 * 3 * 4 * 5 * 3 * 9 * 64
