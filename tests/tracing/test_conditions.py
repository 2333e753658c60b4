"""Conditions on samples of which one side only raises are taken as the other side, and checked in every step; those
that make no difference are left out."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from partita.runtime.feed import Feed
from partita.tracing.capture import capture
from tests.tracing.eager import difference
from tests.tracing.interpreter import interpret
from tests.tracing.models import WORDS, task, texts

pytestmark = pytest.mark.filterwarnings("ignore")


def raising(x: Any, hidden: Any) -> None:
    if x.max() >= WORDS:
        raise ValueError(f"of {len(x)} samples some have words from {WORDS} on, such as {x.max().item()}")


def asserting(x: Any, hidden: Any) -> None:
    assert not torch.isnan(hidden).any(), f"not a number in {hidden}"
    torch._assert((x < WORDS).all(), "words out of range")


def checking(x: Any, hidden: Any) -> None:
    torch._check_tensor_all(x < WORDS, lambda: f"words are below {WORDS}")


def asynchronous(x: Any, hidden: Any) -> None:
    torch._assert_async((x < WORDS).all(), "words out of range")


def nested(x: Any, hidden: Any) -> None:
    bad = bool((x >= WORDS).any())
    if bad and len(x) > 1:
        raise IndexError("words out of range")


class Checked(nn.Module):
    """Two layers, each of which checks what it is given."""

    def __init__(self, check: Any) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(WORDS + 1, 8), nn.Linear(8, WORDS)
        self.layers, self.check = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)]), check

    def forward(self, x: Any) -> Any:
        hidden = self.words(x)
        for layer in self.layers:
            self.check(x, hidden)
            hidden = torch.tanh(layer(hidden))
        return self.last(hidden)


def predict(model: Any, batch: Any) -> Any:
    return F.cross_entropy(model(batch["x"]).flatten(0, 1), batch["y"].flatten())


@pytest.mark.parametrize("check", [raising, asserting, checking, asynchronous, nested])
def test_a_check_of_samples_is_traced_and_stays_in_the_step(check: Any) -> None:
    given = task("checked", lambda: Checked(check), predict, texts())
    graph = capture(given, precision="fp64")
    assert graph.blind == ""
    assert (graph.rung, graph.symbolic, graph.blind) == ("dispatch", True, "")
    assert difference(given, graph, 3) < 1e-12
    batch = Feed(given, 0).batch(range(3))
    batch["x"][1, 1] = WORDS
    with pytest.raises(RuntimeError, match="words"):
        interpret(graph, Checked(check).double(), batch)


def test_a_message_says_where_it_comes_from_and_what_it_does_not_know() -> None:
    graph = capture(task("checked", lambda: Checked(raising), predict, texts()), precision="fp64")
    check = next(o for o in graph.operators if o.target == "aten._assert_async.msg")
    text = str(check.arguments[1])
    assert text.startswith("ValueError: of 5 samples some have words from 61 on, such as 0 (a sample's number")
    assert "test_conditions.py:" in text


def branching(x: Any, hidden: Any) -> Any:
    return hidden if x.max() >= WORDS else hidden + 1


def caught(x: Any, hidden: Any) -> Any:
    try:
        raising(x, hidden)
    except ValueError:
        return hidden
    return hidden + 1


class Branching(Checked):
    def forward(self, x: Any) -> Any:
        return self.last(self.check(x, self.words(x)))


def halving(x: Any, hidden: Any) -> Any:
    while hidden.norm() > 1:
        hidden = hidden / 2
    return hidden


def deepening(x: Any, hidden: Any) -> Any:
    while True:
        hidden = torch.tanh(hidden) / 2
        if (hidden.abs() < 0.1).all():
            return hidden


def sized(x: Any, hidden: Any) -> Any:
    """What fails on a number that is not known works on one that is."""
    rows = (x > 0).sum().item()
    return hidden + torch.ones(rows).view(rows, -1).sum() if rows > 0 else hidden


@pytest.mark.parametrize("check", [branching, caught, halving, deepening, sized])
def test_a_condition_of_which_no_side_states_an_error_is_not_taken(check: Any) -> None:
    """Nor does a loop that goes on until samples end it hold up a capture."""
    graph = capture(task("branching", lambda: Branching(check), predict, texts()), precision="fp64")
    assert graph.rung == "opaque"
    assert "goes by a number that samples hold at test_conditions.py:" in graph.blind


def numbered(x: Any, hidden: Any) -> None:
    highest = x.max().item()
    if highest >= WORDS or not x.min().item() > -0.5:
        raise ValueError(f"words go up to {highest}, beyond {WORDS}")


def in_double(x: Any, hidden: Any) -> None:
    assert (x == WORDS).sum().item() <= 0.5, "words out of range"


@pytest.mark.parametrize("check", [numbered, in_double])
def test_a_check_of_a_number_is_traced_as_one_of_its_tensor(check: Any) -> None:
    test_a_check_of_samples_is_traced_and_stays_in_the_step(check)


def test_a_weight_may_be_a_number() -> None:
    def weighted(model: Any, batch: Any) -> Any:
        losses = F.cross_entropy(model(batch["x"]).flatten(0, 1), batch["y"].flatten(), reduction="none")
        count = (batch["y"] > 2).sum()
        number = count.item()
        count += 3
        return (losses * (batch["y"] > 2).flatten()).sum(), number

    given = task("weighted", lambda: Checked(lambda x, hidden: None), weighted, texts())
    graph = capture(given, precision="fp64")
    assert graph.rung == "dispatch"
    assert graph.weight is not None
    assert difference(given, graph, 5) < 1e-12


def test_a_number_that_is_used_otherwise_is_not_known() -> None:
    def scaled(x: Any, hidden: Any) -> Any:
        hidden *= 1 - hidden.norm().item()
        return hidden

    graph = capture(task("scaled", lambda: Branching(scaled), predict, texts()), precision="fp64")
    assert graph.rung == "opaque"
    assert "goes by a number that samples hold at test_conditions.py:" in graph.blind


def test_a_size_that_samples_decide_is_told() -> None:
    def counted(x: Any, hidden: Any) -> Any:
        return hidden * len(x.unique())

    graph = capture(task("counted", lambda: Branching(counted), predict, texts()), precision="fp64")
    assert graph.rung == "opaque"
    assert "what samples hold decides the size of a tensor at test_conditions.py:" in graph.blind


def warning(x: Any, hidden: Any) -> None:
    if torch.isnan(hidden).any():
        warnings.warn(f"{torch.isnan(hidden).sum().item()} are no numbers", stacklevel=2)
    if not torch.isfinite(hidden).all():
        print("infinite", hidden)
    if hidden.abs().max().item() > 100:
        logging.getLogger(__name__).error("large: %s", hidden.max())


def test_a_condition_that_makes_no_difference_is_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    given = task("warning", lambda: Checked(warning), predict, texts())
    graph = capture(given, precision="fp64")
    assert (graph.rung, graph.symbolic, graph.blind) == ("dispatch", True, "")
    assert not any(o.target.startswith("aten._assert") for o in graph.operators)
    assert difference(given, graph, 3) < 1e-12
    assert capfd.readouterr().out == ""


class Counting(Checked):
    """Counts what it has seen: not in this step, but in a later one, its result is another."""

    def __init__(self) -> None:
        super().__init__(self.count)
        self.bad, self.scale = 0, torch.ones(())

    def count(self, x: Any, hidden: Any) -> None:
        if (hidden > 100).any():
            self.bad += 1


class Scaling(Counting):
    def count(self, x: Any, hidden: Any) -> None:
        if (hidden > 100).any():
            self.scale = torch.zeros(())


class Together(Counting):
    """Two conditions neither of which makes a difference without the other."""

    def forward(self, x: Any) -> Any:
        hidden = self.words(x)
        high, low = bool((hidden > 100).any()), bool((hidden < -100).any())
        return self.last(hidden * 2 if high and low else hidden)


@pytest.mark.parametrize("model", [Counting, Scaling, Together])
def test_a_condition_that_makes_a_difference_later_or_with_others_is_not_left_out(model: Any) -> None:
    graph = capture(task("counting", model, predict, texts()), precision="fp64")
    assert graph.rung == "opaque"
    assert "goes by a number that samples hold at test_conditions.py:" in graph.blind
