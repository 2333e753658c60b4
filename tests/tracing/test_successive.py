"""A step that changes from call to call is found, wherever what changes is kept, and is captured as one operator."""

from __future__ import annotations

import itertools
import logging
import random
from collections import deque
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from partita.tracing.capture import capture
from partita.tracing.kept import put_back
from partita.tracing.successive import changing, follows_python_random, unsaved
from tests.tracing.models import classify, task


class Layer(nn.Module):
    """One layer; what else it keeps is a subclass's."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)
        self._step, self._flip = 0, False
        self.state: Any = {"inner": {"step": 0}}
        self._center: Any = None

    def forward(self, x: Any) -> Any:
        return self.last(x)


class Private(Layer):
    def forward(self, x: Any) -> Any:
        self._step += 1
        return self.last(x) * min(1.0, self._step / 4)


class Toggling(Layer):
    def forward(self, x: Any) -> Any:
        self._flip = not self._flip
        return self.last(x if self._flip else -x)


class Nested(Layer):
    def forward(self, x: Any) -> Any:
        self.state["inner"]["step"] += 1
        return self.last(x) / self.state["inner"]["step"]


class Experts(Layer):
    """Has a kernel that on fake tensors takes bf16 only, but where it is exported"""

    def forward(self, x: Any) -> Any:
        self._step += 1
        if not torch.compiler.is_compiling():
            wide = torch.cat([x, x[:, :2]], 1)
            ends = torch.tensor([len(x)], dtype=torch.int32)
            x = torch.nn.functional.grouped_mm(wide, torch.eye(8)[None], offs=ends)[:, :6]
        return self.last(x) * min(1.0, self._step / 4)


class Warming:
    """An object that counts when it is called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> float:
        self.calls += 1
        return min(1.0, self.calls / 4)


class Calling(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.state = Warming()

    def forward(self, x: Any) -> Any:
        return self.last(x) * self.state()


class Shared(Layer):
    """Counts in its class."""

    steps = 0

    def forward(self, x: Any) -> Any:
        Shared.steps += 1
        return self.last(x) / Shared.steps


class Centered(Layer):
    """Subtracts what the step before found."""

    def forward(self, x: Any) -> Any:
        found = self.last(x)
        made = found if self._center is None else found - self._center
        self._center = found.detach().mean(0)
        return made


class CenteredInDict(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.state = {"center": torch.zeros(3)}

    def forward(self, x: Any) -> Any:
        found = self.last(x)
        made = found - self.state["center"].to(found.dtype)
        self.state["center"] = found.detach().mean(0)
        return made


class Tabled(Layer):
    """Keeps a table that it makes once, under a private name."""

    def forward(self, x: Any) -> Any:
        if self._center is None:
            self._center = torch.arange(6.0, dtype=x.dtype)
        return self.last(x + self._center)


class Told(Layer):
    """Keeps what it made, for somebody to look at."""

    def forward(self, x: Any) -> Any:
        self.state["last"] = self._center = self.last(x)
        return self._center


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (Private, "_step"), (Toggling, "_flip"), (Nested, "state.inner.step"), (Calling, "state.calls"),
        (Shared, "steps"), (Centered, "_center"), (CenteredInDict, "state.center"),
    ],
)  # fmt: skip
def test_a_model_whose_steps_differ_is_not_traced(model: Any, name: str) -> None:
    graph = capture(task("moving", model))
    assert graph.rung == "opaque"
    assert f"the step changes from call to call: the model changes {name!r} in every step" in graph.blind


def test_what_has_no_form_on_fake_tensors_is_asked_as_it_is_traced(caplog: Any) -> None:
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    logger.addHandler(caplog.handler)
    try:
        assert "changes '_step' in every step" in changing(task("experts", Experts))
    finally:
        logger.removeHandler(caplog.handler)
    assert not caplog.records


@pytest.mark.parametrize("model", [Tabled, Told])
def test_a_table_and_what_is_only_left_are_no_change(model: Any) -> None:
    assert capture(task("still", model)).rung == "dispatch"


COUNT = 0


def annealed() -> float:
    """A helper with a counter of its own."""
    global COUNT
    COUNT += 1
    return min(1.0, COUNT / 4)


def by_helper(model: Any, batch: Any) -> Any:
    return classify(model, batch) * annealed()


def by_nested() -> Any:
    settings = {"train": {"step": 0}}

    def loss(model: Any, batch: Any) -> Any:
        settings["train"]["step"] += 1
        return classify(model, batch) * settings["train"]["step"]

    return loss


def by_iterator() -> Any:
    counted = itertools.count(1)
    return lambda model, batch: classify(model, batch) * min(1.0, next(counted) / 4)


def by_deque() -> Any:
    window = deque[float](maxlen=3)

    def loss(model: Any, batch: Any) -> Any:
        window.append(1.0)
        return classify(model, batch) * sum(window) / 3

    return loss


def by_list() -> Any:
    found: list[Any] = []

    def loss(model: Any, batch: Any) -> Any:
        made = classify(model, batch)
        found.append(made.detach())
        return made * len(found)

    return loss


def by_array() -> Any:
    steps = numpy.zeros(1)

    def loss(model: Any, batch: Any) -> Any:
        steps[0] += 1
        return classify(model, batch) * float(steps[0])

    return loss


def by_numpy() -> Any:
    generator = numpy.random.default_rng(0)
    return lambda model, batch: classify(model, batch) * float(generator.uniform(0.5, 1.5))


def by_python() -> Any:
    generator = random.Random(0)
    return lambda model, batch: classify(model, batch) * generator.uniform(0.5, 1.5)


def by_keyword(model: Any, batch: Any, *, kept: dict[str, int]) -> Any:
    kept["steps"] += 1
    return classify(model, batch) / kept["steps"]


class Method:
    """Calls what counts."""

    def loss(self, model: Any, batch: Any) -> Any:
        return by_helper(model, batch)

    def __call__(self, model: Any, batch: Any) -> Any:
        return by_helper(model, batch)


def by_settings(kept: SimpleNamespace, model: Any, batch: Any) -> Any:
    kept.steps += 1
    return classify(model, batch) / kept.steps


def by_inner(model: Any, batch: Any) -> Any:
    return sum(classify(model, batch) * factor() for factor in [lambda: annealed()])


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (partial(by_keyword, kept={"steps": 0}), "'steps'"), (Method().loss, "COUNT'"), (Method(), "COUNT'"),
        (partial(by_settings, SimpleNamespace(steps=0)), "steps'"), (by_inner, "COUNT'"),
        (by_helper, "'annealed.COUNT'"), (by_nested(), "'settings.train.step'"), (by_iterator(), "with other numbers"),
        (by_deque(), "'window."), (by_list(), "with other numbers"), (by_array(), "'steps'"),
        (by_numpy(), "'generator'"), (by_python(), "'generator'"),
    ],
    ids=[
        "keyword", "method", "called", "settings", "inner", "helper", "nested", "iterator", "deque", "list", "array",
        "numpy", "python",
    ],
)  # fmt: skip
def test_a_loss_whose_steps_differ_is_not_traced(loss: Any, words: str) -> None:
    graph = capture(task("moving", Layer, loss))
    assert graph.rung == "opaque"
    assert "the step changes from call to call: " in graph.blind
    assert words in graph.blind


def test_what_stays_is_no_change_however_it_compares() -> None:
    """A number that is none, an array that nobody may write, a variable without a value."""
    best, table = float("nan"), numpy.ones(3)
    table.flags.writeable = False

    def loss(model: Any, batch: Any) -> Any:
        return classify(model, batch) * float(table[0]) if best != 0.5 else later

    graph = capture(task("still", Layer, loss))
    later = 1.0
    assert graph.rung == "dispatch"


def test_what_a_loss_keeps_in_containers_and_generators_is_put_back() -> None:
    window, draws, numbers = deque([0.5], maxlen=3), random.Random(0), numpy.zeros(1)
    last: Any = None

    def loss(model: Any, batch: Any) -> Any:
        nonlocal last
        last = classify(model, batch) * sum(window) * draws.random() * float(numbers[0])
        window.append(1.0)
        numbers[0] += 1
        return last

    given, before = task("moving", Layer, loss), draws.getstate()
    with put_back(given):
        loss(Layer(), (torch.ones(2, 6), torch.zeros(2, dtype=torch.long)))
    assert (list(window), float(numbers[0]), last, draws.getstate()) == ([0.5], 0.0, None, before)


def test_a_counter_is_not_taken_for_pythons_random_numbers() -> None:
    given = task("moving", Layer, lambda m, b: classify(m, b) * random.random())
    assert not changing(given)
    assert follows_python_random(given)
    assert "'annealed.COUNT'" in changing(task("moving", Layer, by_helper))


def by_average() -> Any:
    kept: dict[str, Any] = {"mean": None}

    def loss(model: Any, batch: Any) -> Any:
        found = classify(model, batch)
        now = float(found.detach())
        kept["mean"] = now if kept["mean"] is None else 0.5 * kept["mean"] + 0.5 * now
        return found / kept["mean"]

    return loss


def by_generator() -> Any:
    generator = torch.Generator().manual_seed(0)
    return lambda m, b: classify(m, (b[0] + torch.randn(b[0].shape, generator=generator), b[1]))


@pytest.mark.parametrize(
    ("loss", "words"),
    [(by_average(), "'kept.mean'"), (by_generator(), "a torch.Generator of its own"), (by_nested(), "'settings.")],
    ids=["average", "generator", "counter"],
)
def test_what_checkpoints_do_not_hold_is_told(loss: Any, words: str) -> None:
    assert words in unsaved(task("moving", Layer, loss))


def test_checkpoints_hold_all_of_what_only_looks_at_data() -> None:
    assert not unsaved(task("looking", Layer, lambda m, b: classify(m, b) * (1 + float(b[0].sum() > 0))))


@torch.jit.script
def squared(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * torch.tanh(x + 0.1 * x**3)


def test_a_scripted_function_is_traced_as_it_says_however_often_it_has_run() -> None:
    """From its second call on, TorchScript calls other operators, for the shapes that it has seen."""
    given = task("scripted", Layer, lambda m, b: classify(lambda x: squared(m(x)), b))
    for _ in range(3):
        squared(torch.ones(2, 3, requires_grad=True)).sum().backward()
    assert not changing(given)
    graph = capture(given)
    assert graph.rung == "dispatch"
    assert "aten.tanh_backward.default" in {operator.target for operator in graph.operators}
