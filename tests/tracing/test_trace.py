"""One traced step: what it starts from, which batches it looks at, and where each call comes from."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from partita.tracing.capture import capture
from tests.tracing.eager import difference
from tests.tracing.models import classify, task


class Turned(nn.Module):
    """A weight and a buffer that do not lie row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Parameter(torch.ones(3, 6).T)
        self.register_buffer("table", torch.ones(3, 6).T)

    def forward(self, x: Any) -> Any:
        return x @ (self.last * self.table)


def test_weights_and_buffers_lie_row_by_row_as_ranks_hold_them() -> None:
    graph = capture(task("turned", Turned))
    assert [each.tensor.strides for each in (*graph.parameters, *graph.buffers)] == [(), ()]


def test_a_batch_is_not_as_large_as_a_sample() -> None:
    """A model that asks whether there are as many samples as numbers in each."""
    data = [(torch.ones(5, 7), torch.tensor(0)) for _ in range(8)]

    def loss(model: Any, batch: Any) -> Any:
        x = batch[0].flatten(1)
        return F.cross_entropy(model(-x if len(x) in batch[0].shape[1:] else x), batch[1])

    graph = capture(task("square", lambda: nn.Linear(35, 3), loss, data))
    assert (graph.rung, graph.symbolic) == ("dispatch", True)
    assert "aten.neg.default" not in {o.target for o in graph.operators}


def test_samples_all_over_the_data_are_looked_at() -> None:
    """Of 64 samples one in the middle is longer, in no batch that is looked at."""
    data = [(torch.ones(6 + (i == 32)), torch.tensor(0)) for i in range(64)]
    graph = capture(task("long", lambda: nn.Linear(6, 3), lambda m, b: classify(m, (b[0][:, :6], b[1])), data))
    assert graph.rung == "opaque"
    assert "tensors of other shapes" in graph.blind


@pytest.mark.parametrize("same", [True, False])
def test_an_array_beside_the_samples_is_never_taken_for_all_batches(same: bool) -> None:
    def collate(samples: list[Any]) -> Any:
        x = torch.stack([x for x, _ in samples])
        return x, torch.stack([y for _, y in samples]), numpy.ones(2) if same else x[0, :2].numpy().copy()

    given = task("array", lambda: nn.Linear(6, 3), lambda m, b: classify(m, b) * float(b[2][0]), collate=collate)
    assert capture(given).rung == "opaque"


class Looked(nn.Module):
    """Its last layer has a hook of the user's that looks at what comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)
        self.last.register_forward_pre_hook(lambda module, given: (given[0].sin(),))

    def forward(self, x: Any) -> Any:
        return self.last(x)


def test_a_call_says_which_module_and_which_line_of_the_user_made_it() -> None:
    """A hook's call is its module's; one in code without a file is whose line runs that."""
    code = compile("found = (out * 2).cos()", "<made>", "exec")

    def loss(model: Any, batch: Any) -> Any:
        names = {"out": model(batch[0])}
        exec(code, names)
        return F.cross_entropy(names["found"], batch[1])

    graph = capture(task("looked", Looked, loss))
    sin, cos = (next(o for o in graph.operators if o.target == f"aten.{name}.default") for name in ("sin", "cos"))
    assert (sin.module, cos.module) == ("last", "")
    assert all(o.source.startswith("tests/tracing/test_trace.py:") for o in (sin, cos))
    twin = next(o for o in graph.operators if o.twin == cos.name)
    assert twin.module == ""


def test_who_makes_a_call_is_known_after_a_module_has_failed() -> None:
    class Failing(nn.Module):
        def forward(self, x: Any) -> Any:
            raise ValueError

    class Tried(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.tried = nn.Linear(6, 3), Failing()

        def forward(self, x: Any) -> Any:
            try:
                self.tried(x)
            except ValueError:
                x = x.sin()
            return self.last(x)

    given = task("tried", Tried)
    graph = capture(given, precision="fp64")
    assert next(o for o in graph.operators if o.target == "aten.sin.default").module == ""
    assert difference(given, graph, 3) < 1e-12
