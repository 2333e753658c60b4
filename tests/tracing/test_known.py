"""Models that look at values are traced where these follow from no sample, no weight and no chance."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from partita.tracing.calls import AtenCall
from partita.tracing.capture import capture
from partita.tracing.known import value_of
from partita.tracing.record import ModuleStack, Recorder
from tests.tracing.eager import difference
from tests.tracing.models import LENGTH, WORDS, predict, task, texts

pytestmark = pytest.mark.filterwarnings("ignore")

triangle = partial(nn.Transformer.generate_square_subsequent_mask, LENGTH)


class Masked(nn.Module):
    """Torch's encoder, which compares its mask with a triangle."""

    def __init__(self, kept: str) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.embedding, self.encoder = nn.Embedding(WORDS, 16), nn.TransformerEncoder(layer, 2)
        self.head, self.kept = nn.Linear(16, WORDS), kept
        if kept == "buffer":
            self.register_buffer("mask", triangle())
        else:
            self.mask = triangle() if kept == "attribute" else None

    def forward(self, x: Any) -> Any:
        if self.kept == "cache" and self.mask is None:
            self.mask = triangle()
        mask = triangle() if self.mask is None else self.mask
        return self.head(self.encoder(self.embedding(x), mask=mask))


@pytest.mark.parametrize("kept", ["", "buffer", "attribute", "cache"])
def test_a_mask_is_compared_with_a_triangle(kept: str) -> None:
    given = task("masked", partial(Masked, kept), predict, texts())
    graph = capture(given, precision="fp64")
    assert (graph.rung, graph.symbolic, graph.blind) == ("dispatch", True, "")
    assert difference(given, graph, 2) < 1e-12


class Looking(nn.Module):
    """Its step depends on what `at` says."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at, self.last = at, nn.Linear(6, 3)
        self.register_buffer("decay", torch.full((6,), 4.0))
        self.own = torch.full((6,), 4.0)

    def forward(self, x: Any) -> Any:
        seen = {"sample": x, "weight": self.last.weight, "chance": torch.rand(6), "buffer": self.decay, "own": self.own}
        self.decay = self.decay / 2
        if self.at == "own":
            self.own = self.own / 2
        return self.last(x) if seen[self.at].sum() > 3 else self.last(-x)


@pytest.mark.parametrize("at", ["sample", "weight", "chance", "buffer", "own"])
def test_what_another_step_has_otherwise_is_not_known(at: str) -> None:
    graph = capture(task("looking", partial(Looking, at)))
    assert graph.rung == "opaque"
    assert at == "own" or "goes by a number" in graph.blind


def recorded(make: Any, *leaves: torch.Tensor) -> tuple[torch.Tensor, list[AtenCall]]:
    """What `make` makes of fake leaves, and the calls that made it."""
    recorder = Recorder()
    with recorder, ModuleStack(nn.Identity()) as recorder.places:
        return make(*leaves), recorder.calls


def test_a_value_is_whole_or_not_known_if_it_is_too_large() -> None:
    for count in (8, 2**21):
        found, calls = recorded(lambda n=count: torch.arange(n) < 5)
        value = value_of(found, calls, {}, set())
        assert value is not None
        assert torch.equal(value, torch.arange(count) < 5)
    found, calls = recorded(lambda: torch.arange(2**40) < 5)
    assert value_of(found, calls, {}, set()) is None


def test_a_value_follows_from_what_is_given_by_keyword_too() -> None:
    sorter = Recorder().from_tensor(torch.tensor([1, 0]))
    found, calls = recorded(
        lambda order: torch.searchsorted(torch.tensor([5, 3]), torch.tensor([4]), sorter=order + 0), sorter
    )
    value = value_of(found, calls, {id(sorter): torch.tensor([1, 0])}, set())
    assert value is not None
    assert value.tolist() == [1]
    assert value_of(found, calls, {}, {id(sorter)}) is None
