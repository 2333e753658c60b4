"""A mask that is made of positions alone and hides what causal attention hides, or nothing, is taken away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from partita.graph.graph import Graph
from partita.graph.operator import Operator
from partita.tracing import values
from partita.tracing.capture import capture
from tests.tracing.eager import difference
from tests.tracing.models import LENGTH, TASKS, WORDS, predict, task, texts

pytestmark = pytest.mark.filterwarnings("ignore")
MaskOf = Callable[[torch.Tensor, torch.Tensor], Any]


class Attentive(nn.Module):
    """One layer of attention under a mask that a function makes of the places of queries and keys."""

    def __init__(self, mask: MaskOf, *, wide: bool = False, hidden: float = 0.0) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(WORDS, 24), nn.Linear(8, WORDS)
        self.mask, self.wide, self.low = mask, wide, hidden

    def forward(self, x: torch.Tensor) -> Any:
        query, key, value = self.words(x)[:, None].chunk(3, -1)
        places = torch.arange(x.shape[1])
        mask = self.mask(places[:, None], places[None, :])
        if self.wide:
            mask = mask[None, None].expand(x.shape[0], -1, -1, -1)
        if self.low:
            mask = torch.where(mask, 0.0, self.low)
        return self.last(F.scaled_dot_product_attention(query, key, value, attn_mask=mask)[:, 0])


def attention_of(graph: Graph) -> list[Operator]:
    return [o for o in graph.operators if "scaled_dot_product" in o.target]


def captured(mask: MaskOf, **more: Any) -> Graph:
    given = task("attentive", lambda: Attentive(mask, **more), predict, texts())
    graph = capture(given, precision="fp64")
    assert graph.rung == "dispatch"
    assert difference(given, graph, 3) < 1e-12
    return graph


@pytest.mark.parametrize("more", [{}, {"wide": True}, {"hidden": float("-inf")}, {"hidden": -1.7976931348623157e308}])
def test_a_triangle_is_causal_and_no_longer_made(more: dict[str, Any]) -> None:
    graph = captured(lambda query, key: key <= query, **more)
    forward, backward = attention_of(graph)
    for operator, place in ((forward, 4), (backward, 7)):
        assert operator.arguments[place] is True
        assert "attn_mask" not in dict(operator.keywords)
    assert not [o for o in graph.operators if o.target.startswith(("aten.le.", "aten.where.", "aten.arange."))]


def test_a_mask_that_hides_nothing_goes_without_becoming_causal() -> None:
    forward, backward = attention_of(captured(lambda query, key: key <= query + LENGTH))
    assert (forward.arguments[4:], backward.arguments[7]) == ((False,), False)
    assert "attn_mask" not in dict(forward.keywords) | dict(backward.keywords)


@pytest.mark.parametrize(
    "mask",
    [
        lambda query, key: key < query + 2,
        lambda query, key: key >= query,
        lambda query, key: (key <= query) & (key > query - 3),
        lambda query, key: torch.where(key <= query, 0.5, -torch.inf).double(),
    ],
    ids=["one-ahead", "upper", "window", "bias"],
)
def test_other_masks_stay(mask: MaskOf) -> None:
    for operator in attention_of(captured(mask)):
        assert "attn_mask" in dict(operator.keywords)


def test_a_mask_that_is_drawn_stays() -> None:
    drawn = lambda query, key: (key <= query) | (torch.rand(LENGTH, LENGTH) > 2)  # noqa: E731
    graph = capture(task("drawn", lambda: Attentive(drawn), predict, texts()))
    assert graph.rung == "dispatch"
    assert "attn_mask" in dict(attention_of(graph)[0].keywords)


def test_attention_that_drops_weights_is_causal_with_its_probability() -> None:
    class Dropping(Attentive):
        def forward(self, x: torch.Tensor) -> Any:
            query, key, value = self.words(x)[:, None].chunk(3, -1)
            places = torch.arange(x.shape[1])
            mask = places[None, :] <= places[:, None]
            return self.last(F.scaled_dot_product_attention(query, key, value, mask, dropout_p=0.25)[:, 0])

    graph = capture(task("dropping", lambda: Dropping(lambda query, key: key <= query), predict, texts()))
    forward, backward = (o for o in graph.operators if "dropout_attention" in o.target)
    assert forward.arguments[3:6] == (None, 0.25, True)
    assert (backward.arguments[4], *backward.arguments[8:10]) == (None, 0.25, True)


def test_a_mask_of_samples_stays() -> None:
    class Padded(Attentive):
        def forward(self, x: torch.Tensor) -> Any:
            self.mask = lambda query, key: (key <= query) & (x[:, None, None, :] > 0)
            return super().forward(x)

    given = task("padded", lambda: Padded(lambda query, key: key <= query), predict, texts())
    assert "attn_mask" in dict(attention_of(capture(given))[0].keywords)


def test_a_mask_that_looks_up_positions_by_sample_is_known() -> None:
    """Decoders tell packed sequences from positions, which they look up sample by sample."""

    class Packed(Attentive):
        def forward(self, x: torch.Tensor) -> Any:
            places, rows = torch.arange(x.shape[1]), torch.arange(x.shape[0])[:, None, None, None]
            every = places.expand(x.shape[0], -1)
            document = (every.diff(prepend=every[:, :1] - 1) != 1).cumsum(-1)
            one, other = document[rows, places[:, None]], document[rows, places[None, :]]
            self.mask = lambda query, key: (one == other) & (key <= query)
            return super().forward(x)

    given = task("packed", lambda: Packed(lambda query, key: key <= query), predict, texts())
    assert attention_of(capture(given))[0].arguments[4] is True


def test_masks_that_differ_in_a_keyword_are_told_apart() -> None:
    class Twice(Attentive):
        def forward(self, x: torch.Tensor) -> Any:
            self.mask = lambda query, key: key <= torch.add(query, 1, alpha=0)
            first = super().forward(x)
            self.mask = lambda query, key: key <= torch.add(query, 1, alpha=1)
            return first + super().forward(x)

    given = task("twice", lambda: Twice(lambda query, key: key <= query), predict, texts())
    causal, ahead = attention_of(capture(given))[:2]
    assert causal.arguments[4] is True
    assert "attn_mask" in dict(ahead.keywords)


@pytest.mark.parametrize("own", [False, True])
def test_attention_over_many_places_is_causal(own: bool) -> None:
    """By its mask, of 2**28 places a sample, or because it says so."""

    class Saying(Attentive):
        def forward(self, x: torch.Tensor) -> Any:
            query, key, value = self.words(x)[:, None].chunk(3, -1)
            return self.last(F.scaled_dot_product_attention(query, key, value, is_causal=True)[:, 0])

    long = [{name: torch.zeros(2**14, dtype=torch.int64) for name in "xy"}] * 8
    model = Saying if own else Attentive
    graph = capture(task("long", lambda: model(lambda query, key: key <= query, wide=True), predict, long))
    forward, backward = attention_of(graph)
    assert (forward.arguments[4], backward.arguments[7]) == (True, True)


def test_masks_that_would_take_much_to_know_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "SMALL", LENGTH)
    monkeypatch.setattr(values, "WORK", LENGTH * LENGTH)
    assert "attn_mask" in dict(attention_of(captured(lambda query, key: key <= query))[0].keywords)


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_decoders_are_causal(name: str) -> None:
    operators = attention_of(capture(TASKS[name]()))
    assert len(operators) == 4
    for operator in operators:
        assert operator.arguments[7 if "backward" in operator.target else 4] is True
        assert "attn_mask" not in dict(operator.keywords)
