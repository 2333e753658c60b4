"""What a trace cannot see is never taken for what it was in the first batch; what it can see through, it does."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from partita.tracing.capture import capture
from partita.tracing.kept import own_values
from tests.tracing.eager import difference
from tests.tracing.models import classify, task


class Layers(nn.Module):
    """Two layers; what else happens is a subclass's."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)
        self.steps, self.longest = 0, 0
        self.kept: Any = None

    def forward(self, x: Any) -> Any:
        return self.last(self.first(x))


class Counting(Layers):
    def forward(self, x: Any) -> Any:
        self.steps += 1
        return super().forward(x) / self.steps


class Caching(Layers):
    """Rotary embeddings keep tables so, as long as the longest sequence yet."""

    def forward(self, x: Any) -> Any:
        if x.shape[1] > self.longest:
            self.longest, self.kept = x.shape[1], torch.arange(6.0, dtype=x.dtype)
        return super().forward(x + self.kept)


class Remembering(Layers):
    """A recurrence over batches, whose state is no buffer."""

    def forward(self, x: Any) -> Any:
        before = torch.zeros(6, dtype=x.dtype) if self.kept is None else self.kept
        self.kept = (x.mean(0) + before).detach()
        return self.last(x + before)


class Telling(Layers):
    """Leaves what it computed for somebody to look at, and a part of the loss for the loss."""

    def forward(self, x: Any) -> Any:
        found = self.first(x)
        self.kept = found.square().mean()
        return self.last(found)


class Growing(Layers):
    """Looks at a buffer that was made from plain numbers and counts steps."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x: Any) -> Any:
        self.count += 1
        return super().forward(x) / float(self.count)


class Throwing(Layers):
    def forward(self, x: Any) -> Any:
        return self.last(x) if random.random() < 0.5 else self.last(-x)


class Idle(Layers):
    """Draws what it does not use, as checks of types do that look at some elements only."""

    def forward(self, x: Any) -> Any:
        random.getrandbits(8)
        return super().forward(x)


class Drawing(Layers):
    def forward(self, x: Any) -> Any:
        return self.last(x) * numpy.random.rand()


class Frugal(Layers):
    """Computes its first layer again in its backward pass."""

    def __init__(self, reentrant: bool, probability: float) -> None:
        super().__init__()
        self.reentrant, self.drop = reentrant, nn.Dropout(probability)

    def forward(self, x: Any) -> Any:
        again = checkpoint(lambda q: self.drop(F.gelu(self.first(q))), x, use_reentrant=self.reentrant)
        return self.last(again)


class Halving(Layers):
    """The gradient of a weight goes through a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.first.weight.register_hook(lambda gradient: gradient / 2)


def scaled(samples: list[Any]) -> Any:
    """A batch with a plain number and texts."""
    values = [x for x, _ in samples]
    return {
        "x": torch.stack(values), "y": torch.stack([y for _, y in samples]), "names": [str(x[0]) for x in values],
        "most": float(max(x.max() for x in values)),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Counting, "the model changes 'steps' in every step"),
        (Remembering, "the model changes 'kept' in every step"),
        (Growing, "goes by a number that samples hold"),
        (Throwing, "Python's or NumPy's random numbers"),
        (Drawing, "Python's or NumPy's random numbers"),
    ],
)
def test_a_step_that_is_another_one_the_next_time_is_not_traced(model: Any, words: str) -> None:
    graph = capture(task("moving", model))
    assert graph.rung == "opaque"
    assert words in graph.blind


STEPS = 0


class Calls:
    """A loss that is an object."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, model: Any, batch: Any) -> Any:
        self.made += 1
        return classify(model, batch) / self.made

    def method(self, model: Any, batch: Any) -> Any:
        return self(model, batch)


def by_closure() -> Any:
    calls = 0

    def loss(model: Any, batch: Any) -> Any:
        nonlocal calls
        calls += 1
        return classify(model, batch) / calls

    return loss


def by_remembering() -> Any:
    kept = {"last": torch.zeros(())}

    def loss(model: Any, batch: Any) -> Any:
        found = classify(model, batch)
        before, kept["last"] = kept["last"], found.detach()
        return found + 0.1 * found * before

    return loss


def by_global(model: Any, batch: Any) -> Any:
    global STEPS
    STEPS += 1
    return classify(model, batch) / STEPS


def by_argument(kept: list[int], model: Any, batch: Any) -> Any:
    kept[0] += 1
    return classify(model, batch) / kept[0]


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (by_closure(), "calls"),
        (by_remembering(), "kept.last"),
        (by_global, "STEPS"),
        (partial(by_argument, [0]), "0"),
        (Calls(), "made"),
        (Calls().method, "made"),
    ],
    ids=["closure", "tensor", "global", "argument", "object", "method"],
)
def test_a_loss_that_is_another_one_the_next_time_is_not_traced(loss: Any, name: str) -> None:
    """Capturing leaves what it keeps as it was."""
    given = task("moving", Layers, loss)
    before = own_values(given, Layers())
    graph = capture(given)
    assert graph.rung == "opaque"
    assert f"the loss changes {name!r} in every step, which is no buffer of the model; keep" in graph.blind
    assert own_values(given, Layers()).items() >= {k: v for k, v in before.items() if k[0] == "loss"}.items()


def test_what_a_loss_keeps_and_does_not_change_is_no_hindrance() -> None:
    scale, seen = {"by": 0.5, "table": torch.ones(3)}, list[Any]()

    def loss(model: Any, batch: Any) -> Any:
        found = classify(model, batch) * scale["by"]
        seen.append(found.detach())
        return found

    assert capture(task("still", Layers, loss)).rung == "dispatch"


@pytest.mark.parametrize("use", ["{} * b['most']", "{} if b['most'] > 2 else -{}", "{} * float(b['most'])"])
def test_a_plain_number_of_the_batch_is_not_frozen(use: str) -> None:
    def loss(m: Any, b: Any) -> Any:
        return F.cross_entropy(eval(use.replace("{}", "out"), {"out": m(b["x"]), "b": b}), b["y"])

    graph = capture(task("scaled", Layers, loss, collate=scaled))
    assert graph.rung == "opaque"
    assert "is no tensor and differs from batch to batch" in graph.blind or "Varying" in graph.blind


def test_texts_that_nobody_reads_do_no_harm() -> None:
    def moved(batch: Any) -> Any:
        """As loops over a batch move its tensors."""
        return {name: value.to("cpu") if hasattr(value, "to") else value for name, value in batch.items()}

    def loss(m: Any, b: Any) -> Any:
        b = moved(b)
        return F.cross_entropy(m(b["x"]), b["y"])

    given = task("named", Layers, loss, collate=scaled)
    graph = capture(given, precision="fp64")
    assert graph.rung == "dispatch"
    assert difference(given, graph, 3) < 1e-12


@pytest.mark.parametrize(
    "model",
    [Caching, Telling, Idle, Halving, lambda: Frugal(True, 0.0), lambda: Frugal(False, 0.3), lambda: Frugal(True, 0.3)],
    ids=["caching", "telling", "idle", "halving", "reentrant", "dropping", "both"],
)
def test_what_can_be_seen_through_is_traced(model: Any) -> None:
    def loss(m: Any, b: Any) -> Any:
        return classify(m, (b[0].clone().requires_grad_(), b[1]))

    given = task("seen", model, loss)
    graph = capture(given, precision="fp64")
    assert graph.rung == "dispatch"
    assert {name for name, _ in graph.gradients} == {name for name, _ in model().named_parameters()}
    if "drop" not in dict(model().named_modules()) or not model().drop.p:
        assert difference(given, graph, 3) < 1e-12


def test_a_compiled_model_is_traced_as_it_is_written() -> None:
    given = task("compiled", lambda: torch.compile(Layers()))
    graph = capture(given)
    assert graph.rung == "dispatch"
    assert [o.target for o in graph.operators].count("aten.addmm.default") == 2


def test_training_is_in_training_mode() -> None:
    """As models from libraries come in evaluation mode, and loops call `train`."""

    def model() -> Any:
        return nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 3)).eval()

    assert any(o.target == "partita.dropout" for o in capture(task("dropping", model)).operators)
