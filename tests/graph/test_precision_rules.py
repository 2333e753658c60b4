"""A rewritten step computes what a model with short weights does in plain PyTorch, every dtype as it is declared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.activations import NewGELUActivation

from partita.graph.graph import Graph
from partita.graph.precision import shortened
from partita.task import Task
from partita.tracing.capture import capture
from partita.tracing.draws import KeyedDraws, sample_dims
from partita.tracing.prepare import build_batch, build_model
from partita.tracing.promote import Promoted
from partita.tracing.shorten import Shortened, WholeCalls, shorten
from tests.small import perceptron
from tests.tracing.interpreter import interpret
from tests.tracing.models import TASKS

SEED, STEP, BATCH = 3, 1, 4


def ours(task: Task, graph: Graph, short: torch.dtype, weights: int = 0) -> dict[str, Tensor]:
    """Loss and gradients of the rewritten step, whose interpreter holds every operator to its dtypes; `weights` seeds
    what the model starts from."""
    seen = interpret(graph, *_given(task, short, weights), seed=SEED, step=STEP)
    return {"loss": seen["loss"], **seen["gradients"]}


def plain(task: Task, graph: Graph, short: torch.dtype, weights: int = 0) -> dict[str, Tensor]:
    """The same of plain PyTorch with short weights."""
    with WholeCalls(torch.float32), Shortened(short, torch.float32):
        return _by_autograd(task, graph, *_given(task, short, weights))


def exact(task: Task, graph: Graph, short: torch.dtype, weights: int = 0) -> dict[str, Tensor]:
    """The same in fp64, of the same weights, which are rounded as short ones are."""
    model, _ = _given(task, short, weights)
    with Promoted():
        return _by_autograd(task, graph, model.double(), build_batch(task, range(BATCH), "fp64"))


def _given(task: Task, short: torch.dtype, weights: int) -> tuple[nn.Module, Any]:
    torch.manual_seed(weights)
    model = build_model(task, "fp32")
    shorten(model, short)
    return model, build_batch(task, range(BATCH), "fp32")


def _by_autograd(task: Task, graph: Graph, model: nn.Module, data: Any) -> dict[str, Tensor]:
    with KeyedDraws(SEED, STEP, range(BATCH), sample_dims(graph)):
        value = task.loss(model, data)
        loss = value[0] if isinstance(value, tuple) else value
        loss.to(torch.promote_types(loss.dtype, torch.float32)).backward()
    return {"loss": loss.detach(), **{name: p.grad for name, p in model.named_parameters() if p.grad is not None}}


def differences(task: Task, graph: Graph, short: torch.dtype) -> dict[str, float]:
    """Of loss and gradients, the largest there is."""
    wanted, seen = plain(task, graph, short), ours(task, graph, short)
    for name in wanted.keys() - {"loss"}:
        assert wanted[name].dtype == seen[name].dtype == short
    return {name: float((wanted[name].double() - seen[name].double()).abs().max()) for name in wanted}


LARGE = [pytest.param(name, marks=pytest.mark.slow) for name in ("gpt2", "bert")]


@pytest.mark.parametrize("name", ["perceptron", "convnet", "resnet", *LARGE])
@pytest.mark.parametrize("short", [torch.bfloat16, torch.float16])
def test_a_step_is_plain_pytorchs_to_the_bit(name: str, short: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPT-2's, which composes its activation, where plain PyTorch calls the kernel as well."""
    task = TASKS[name]() if name in TASKS else perceptron()
    graph = shortened(capture(task, batch=BATCH, symbolic=False), str(short)[6:])
    monkeypatch.setattr(NewGELUActivation, "forward", lambda self, x: nn.functional.gelu(x, approximate="tanh"))
    assert set(differences(task, graph, short).values()) == {0.0}


@pytest.mark.slow
@pytest.mark.parametrize("short", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", TASKS)
def test_a_step_is_as_far_from_exact_as_plain_pytorch(name: str, short: torch.dtype) -> None:
    """What reads values of several dtypes may be rounded at another place than autograd rounds it, which makes a step
    another one, but no worse: of each gradient, also of one that is round-off alone, the error against the fp64 step
    is at most twice the error of plain PyTorch. The median of several draws of weights says so: where a router is
    undecided, or a ReLU at its edge, one of the two may now and then go another way than fp64, but neither as a rule.
    """
    task = TASKS[name]()
    graph = shortened(capture(task, batch=BATCH, symbolic=False), str(short)[6:])
    times: dict[str, list[float]] = {}
    for weights in range(5):
        goal, found, usual = (step(task, graph, short, weights) for step in (exact, ours, plain))
        assert abs(float(found["loss"] / goal["loss"]) - 1) <= torch.finfo(short).eps
        assert found.keys() == usual.keys() == goal.keys()
        for key in found.keys() - {"loss"}:
            error, common = (float((one[key].double() - goal[key]).norm()) for one in (found, usual))
            times.setdefault(key, []).append(error / common if common else float(error > 0))
    assert max(median(each) for each in times.values()) <= 2.0


class Fanned(nn.Module):
    """A norm whose result three projections look at, each as a table of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.parts = nn.LayerNorm(6), nn.ModuleList(nn.Linear(6, 6, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.norm(x).pow(2)[:, None].expand(-1, 2, -1).clone()
        return sum(part(rows) for part in self.parts)[:, 0, :3]  # type: ignore[no-any-return]


@pytest.mark.parametrize("short", ["bfloat16", "float16"])
def test_a_recurrent_layer_is_short_as_under_autocast(short: str) -> None:
    """torch.autocast gives cuDNN's layers, and oneDNN's LSTMs in bf16, what it gives products."""
    graph = shortened(capture(TASKS["lstm"]()), short)
    layers = [o for o in graph.operators if o.target.startswith("partita.lstm_layer")]
    assert layers
    for layer in layers:
        made = {tensor.dtype for tensor in layer.outputs if tensor}
        assert made | {graph.tensor(ref).dtype for ref in layer.reads()} <= {short, "uint8"}


def test_what_several_look_at_alike_is_cast_once() -> None:
    """Kept once for backward too; gradients are still what plain PyTorch sums."""
    given = replace(perceptron(), model=Fanned)
    graph = shortened(capture(given, batch=BATCH, symbolic=False), "bfloat16")
    products = [o for o in graph.operators[: graph.forward_length] if o.target == "aten.mm.default"]
    assert len(products) == 3
    assert len({next(o.reads()) for o in products}) == 1
    assert set(differences(given, graph, torch.bfloat16).values()) == {0.0}


class Halved(nn.Module):
    """Of what comes in two parts, the second is looked at as well."""

    def __init__(self) -> None:
        super().__init__()
        self.ways = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = (way(part) for way, part in zip(self.ways, x.chunk(2, dim=-1), strict=True))
        return first * second


def test_every_part_of_what_comes_in_parts_is_cast() -> None:
    given = replace(perceptron(), model=Halved)
    graph = shortened(capture(given, batch=BATCH, symbolic=False), "bfloat16")
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


class Routed(nn.Module):
    """A router whose two choices are as likely, to five digits, and which takes this one here, that one there."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.route = nn.Linear(6, 8, bias=False), nn.Linear(8, 6), nn.Linear(8, 1, bias=False)
        nn.init.normal_(self.route.weight, std=1e-5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        likely = nn.functional.softmax(torch.cat([self.route(x), -self.route(x)], -1), -1, dtype=torch.float32)
        found, chosen = likely.topk(1)
        made = self.last(x).view(-1, 2, 3).gather(1, chosen[..., None].expand(-1, -1, 3))[:, 0]
        return made * found.to(x.dtype)


@pytest.mark.parametrize("short", [torch.bfloat16, torch.float16])
def test_a_router_chooses_by_values_that_are_not_rounded(short: torch.dtype) -> None:
    """As where a model takes its softmax in fp32, which a trace of fp32 does not show."""
    given = replace(perceptron(), model=Routed)
    graph = shortened(capture(given, batch=BATCH, symbolic=False), str(short)[6:])
    found = differences(given, graph, short)
    assert {name for name, gap in found.items() if gap} <= {"route.weight"}  # its derivative is of rounded ones
