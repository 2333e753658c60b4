"""The law of patterns: an operator run by parts, joined as its pattern says, gives what it gives whole."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from divided import disagreements
from torch import nn

from partita.errors import PlanError
from partita.graph.graph import Graph, Parameter
from partita.graph.operator import Operator, Ref
from partita.graph.pattern import Monoid, Partial, Replicate, Shard, Window, split
from partita.graph.patterns import pattern_of
from partita.graph.tensor import Tensor
from partita.task import Task
from partita.zoo.data import Image, Synthetic, Tokens
from partita.zoo.gpt import Gpt
from partita.zoo.hugging_face import hugging_face
from partita.zoo.resnet import Bottleneck
from partita.zoo.tasks import built_in, classify, predict
from partita.zoo.unet import UNet
from tests.captures import capture

UNTRIED = ("dropout", "empty", "rand", "assert", "grouped_mm")


def small_images() -> Task:
    def model() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, groups=1), Bottleneck(8, 4, 2), nn.Conv2d(16, 16, 3, padding=1, groups=4),
            nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16 * 9, 10),
        )  # fmt: skip

    return Task("images", model, classify, Synthetic(16, Image(14, 10)), torch.optim.SGD, 8)


def tiny_gpt() -> Task:
    def model() -> nn.Module:
        return Gpt(vocabulary=16, length=12, width=24, heads=2, layers=2)

    return Task("gpt", model, predict, Synthetic(16, Tokens(12, 16)), torch.optim.AdamW, 8)


def tiny_unet() -> Task:
    task = built_in("unet")
    assert task is not None
    return Task("unet", lambda: UNet((8, 16)), task.loss, task.data, task.optimizer, 8)


def tiny_llama() -> Task:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return hugging_face(config, name="llama", length=12)


TASKS = {"images": small_images, "gpt": tiny_gpt, "unet": tiny_unet, "llama": tiny_llama}


@pytest.mark.parametrize("name", TASKS)
def test_parts_joined_equal_the_whole(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = capture(TASKS[name]())
    seen, wrong, tried = set(), [], 0
    for operator in graph.operators:
        shapes = tuple(graph.tensor(ref).shape for ref in operator.reads())
        key = operator.target, shapes, tuple(a for a in operator.arguments if isinstance(a, bool | int))
        if key in seen or any(word in operator.target for word in UNTRIED):
            continue
        seen.add(key)
        pattern = pattern_of(operator, graph)
        assert pattern is not None, operator.target
        wrong += disagreements(operator, graph, pattern)
        tried += 1
    assert tried > 20
    assert not wrong, "\n".join(wrong)


def test_the_law_can_fail() -> None:
    graph = capture(tiny_gpt())
    operator = next(o for o in graph.operators if o.target == "aten.mm.default")
    pattern = pattern_of(operator, graph)
    assert pattern is not None
    broken = replace(pattern, outputs=tuple(replace(o, partial=()) for o in pattern.outputs if o is not None))
    assert disagreements(operator, graph, broken)


def test_a_product_divides_three_ways() -> None:
    graph = capture(tiny_gpt())
    operator = next(o for o in graph.operators if o.target == "aten.mm.default")
    pattern = pattern_of(operator, graph)
    assert pattern is not None
    assert split(pattern, "n").outputs == (Shard(0),)
    assert split(pattern, "n").inputs == (Shard(0), Replicate())
    assert split(pattern, "o").inputs == (Replicate(), Shard(1))
    assert split(pattern, "i").outputs == (Partial(Monoid.SUM),)


def test_a_bias_is_added_once() -> None:
    graph = capture(tiny_gpt())
    operator = next(o for o in graph.operators if o.target == "aten.addmm.default")
    pattern = pattern_of(operator, graph)
    assert pattern is not None
    assert split(pattern, "i").inputs[0] == Partial(Monoid.SUM)
    assert split(pattern, "o").inputs[0] == Shard(0)


def test_unknown_and_indivisible_dimensions_are_refused() -> None:
    graph = capture(small_images())
    operator = next(o for o in graph.operators if o.target == "aten.convolution.default")
    pattern = pattern_of(operator, graph)
    assert pattern is not None
    with pytest.raises(PlanError, match="no dimension 'q'"):
        split(pattern, "q")
    with pytest.raises(PlanError, match="does not divide"):
        split(pattern, "kx")


def test_a_shard_with_its_halo_convolves_as_the_whole() -> None:
    window = Window(kernel=3, stride=2, padding=1, dilation=2)
    image, weight = torch.randn(2, 3, 21, 5), torch.randn(4, 3, 3, 3)
    whole = torch.nn.functional.conv2d(image, weight, None, (2, 1), (1, 1), (2, 1))
    padded = torch.nn.functional.pad(image, (0, 0, 1, 1))
    parts = []
    for start, stop in ((0, 4), (4, 10)):
        first, last = window.reads(start, stop)
        rows = padded[:, :, first + 1 : last + 1]
        parts.append(torch.nn.functional.conv2d(rows, weight, None, (2, 1), (0, 1), (2, 1)))
    assert torch.allclose(torch.cat(parts, 2), whole, atol=1e-5)


def test_heads_of_a_reshape_shard() -> None:
    graph = capture(tiny_llama())
    views = [o for o in graph.operators if o.target == "aten.view.default" and len(o.outputs[0].shape) == 4]
    pattern = pattern_of(views[0], graph)
    assert pattern is not None
    heads = pattern.outputs[0].axes[2][0]  # type: ignore[union-attr]
    assert split(pattern, heads).inputs == (Shard(2),)


def attention_graph(masked: bool) -> Graph:
    parameters = tuple(Parameter(name, Tensor((2, 3, 8, 4), "float32")) for name in "qkv")
    mask = (Parameter("m", Tensor((2, 1, 8, 8), "float32")),) if masked else ()
    operator = Operator(
        "op", "aten._scaled_dot_product_flash_attention_for_cpu.default", (*(Ref(name) for name in "qkv"), 0.0, False),
        (("attn_mask", Ref("m")),) if masked else (),
        (Tensor((2, 3, 8, 4), "float32"), Tensor((2, 3, 8), "float32")), several=True,
    )  # fmt: skip
    return Graph("attention", 2, (operator,), (*parameters, *mask), (), (), (), Ref("op", 0), None, ())


@pytest.mark.parametrize("masked", [False, True])
def test_attention_over_parts_of_the_keys_joins_by_log_sum_exp(masked: bool) -> None:
    graph = attention_graph(masked)
    pattern = pattern_of(graph.operators[0], graph)
    assert pattern is not None
    assert split(pattern, "t").outputs == (Partial(Monoid.SOFTMAX), Partial(Monoid.LOGSUMEXP))
    assert {"n", "h", "s", "t"} <= {label.name for label in pattern.splittable()}
    assert not disagreements(graph.operators[0], graph, pattern)


def test_parts_of_a_vocabulary_mask_what_is_not_theirs() -> None:
    graph = capture(tiny_gpt())
    operator = next(o for o in graph.operators if o.target == "aten.embedding.default")
    pattern = pattern_of(operator, graph)
    assert pattern is not None
    assert pattern.label("v").indexed
    assert split(pattern, "v").outputs == (Partial(Monoid.SUM),)
    table, places = torch.randn(16, 4), torch.randint(0, 16, (3, 5))
    total = torch.zeros(3, 5, 4)
    for offset in (0, 8):
        own = (places >= offset) & (places < offset + 8)
        part = torch.nn.functional.embedding((places - offset).clamp(0, 7), table[offset : offset + 8])
        total += part * own[..., None]
    assert torch.equal(total, table[places])
