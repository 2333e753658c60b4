"""A rewritten step computes what a model with short weights does in plain PyTorch, every dtype as it is declared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from partita.graph.graph import Graph
from partita.graph.precision import shortened
from partita.task import Task
from partita.tracing.capture import capture
from partita.tracing.draws import KeyedDraws, sample_dims
from partita.tracing.prepare import build_batch, build_model
from partita.tracing.shorten import Shortened, WholeCalls, shorten
from tests.small import perceptron
from tests.tracing.interpreter import interpret
from tests.tracing.models import TASKS

SEED, STEP, BATCH = 3, 1, 4


def differences(task: Task, graph: Graph, short: torch.dtype) -> dict[str, float]:
    """Of loss and gradients, relative to the largest of each; the interpreter holds every operator to its dtypes."""
    torch.manual_seed(0)
    model, data = build_model(task, "fp32"), build_batch(task, range(BATCH), "fp32")
    shorten(model, short)
    seen = interpret(graph, model, data, seed=SEED, step=STEP)
    with (
        WholeCalls(torch.float32),
        Shortened(short, torch.float32),
        KeyedDraws(SEED, STEP, range(BATCH), sample_dims(graph)),
    ):
        value = task.loss(model, data)
        loss = value[0] if isinstance(value, tuple) else value
        loss.to(torch.float32).backward()
    found = {"loss": float((loss - seen["loss"]).detach().abs() / loss.detach().abs())}
    for name, p in model.named_parameters():
        if p.grad is not None:
            assert p.grad.dtype == seen["gradients"][name].dtype == short
            gap = (p.grad.double() - seen["gradients"][name].double()).abs().max()
            found[name] = float(gap / p.grad.double().abs().max().clamp(min=1e-12))
    return found


@pytest.mark.parametrize("name", ["perceptron", "convnet", pytest.param("gpt2", marks=pytest.mark.slow), "resnet"])
@pytest.mark.parametrize("short", [torch.bfloat16, torch.float16])
def test_a_step_is_plain_pytorchs_to_the_bit(name: str, short: torch.dtype) -> None:
    task = TASKS[name]() if name in TASKS else perceptron()
    graph = shortened(capture(task, batch=BATCH, symbolic=False), str(short)[6:])
    assert set(differences(task, graph, short).values()) == {0.0}


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_a_step_is_plain_pytorchs_within_its_rounding(name: str) -> None:
    """What reads values of several dtypes may be rounded at another place than autograd rounds it."""
    graph = shortened(capture(TASKS[name](), batch=BATCH, symbolic=False), "bfloat16")
    assert max(differences(TASKS[name](), graph, torch.bfloat16).values()) <= 2.0**-6


class Fanned(nn.Module):
    """A norm whose result three projections look at, each as a table of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.parts = nn.LayerNorm(6), nn.ModuleList(nn.Linear(6, 6, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.norm(x).pow(2)[:, None].expand(-1, 2, -1).clone()
        return sum(part(rows) for part in self.parts)[:, 0, :3]  # type: ignore[no-any-return]


def test_what_several_look_at_alike_is_cast_once() -> None:
    """Kept once for backward too; gradients are still what plain PyTorch sums."""
    given = replace(perceptron(), model=Fanned)
    graph = shortened(capture(given, batch=BATCH, symbolic=False), "bfloat16")
    products = [o for o in graph.operators[: graph.forward_length] if o.target == "aten.mm.default"]
    assert len(products) == 3
    assert len({next(o.reads()) for o in products}) == 1
    assert set(differences(given, graph, torch.bfloat16).values()) == {0.0}


class Turned(nn.Module):
    """Attention whose queries and keys are widened by a table, and whose values, of fewer heads, are not."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.q, self.kv, self.out, self.dropout = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 3), dropout
        self.register_buffer("table", torch.linspace(0.5, 1.5, 8).view(4, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x[:, None] * torch.arange(1, 5, device=x.device)[:, None]
        q = self.q(rows).view(-1, 4, 4, 2).transpose(1, 2) * self.table
        k, v = self.kv(rows).view(-1, 4, 2, 2, 2).permute(3, 0, 2, 1, 4).unbind()
        made = nn.functional.scaled_dot_product_attention(
            q, k * self.table, v, is_causal=True, enable_gqa=True, dropout_p=self.dropout
        )
        return self.out(made.transpose(1, 2).flatten(2))[:, -1]  # type: ignore[no-any-return]


class Bent(nn.Module):
    """GPT-2's activation written out: its input meets wide values in a sum and in a product."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.last(0.3 * x * (1.0 + torch.tanh(0.8 * (x + 0.045 * torch.pow(x, 3.0)))))  # type: ignore[no-any-return]


MODELS = {"fused": partial(Turned, 0.0), "by its parts": partial(Turned, 0.25), "bent": Bent}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("short", [torch.bfloat16, torch.float16])
def test_values_of_two_dtypes_meet_as_in_plain_pytorch(model: Callable[[], nn.Module], short: torch.dtype) -> None:
    given = replace(perceptron(), model=model)
    graph = shortened(capture(given, batch=BATCH, symbolic=False), str(short)[6:])
    assert set(differences(given, graph, short).values()) == {0.0}
