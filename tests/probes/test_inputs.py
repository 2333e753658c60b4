"""Made-up inputs: operators that look at their values, or at how many there are, can be timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from partita.graph.batch import substitute
from partita.probes.operator_timing import seconds_in_turn
from partita.probes.stretches import Stretch, make, stretches_of
from partita.task import Task
from partita.tracing.capture import capture


class Picky(nn.Module):
    """A weight, so that there is something to train, and a function of what it makes of the samples."""

    def __init__(self, act: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.weight, self.act = nn.Linear(6, 4), act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.weight(x))


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(50, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.bags(x)  # type: ignore[no-any-return]


ACTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cross entropy of probabilities": lambda x: functional.binary_cross_entropy(
        x.sigmoid(), torch.ones_like(x), reduction="none"
    ),
    "draws by probabilities": lambda x: x * torch.bernoulli(x.sigmoid()),
    "rows by number": lambda x: x[torch.arange(len(x)), torch.zeros(len(x), dtype=torch.long)][:, None],
    "what a mask leaves": lambda x: x.masked_scatter(x > 0, torch.ones(x.numel())),
}


def picky(name: str) -> Task:
    data = [(torch.randn(6), torch.tensor(0.5)) for _ in range(32)]
    return Task(
        name.replace(" ", "-"), lambda: Picky(ACTS[name]), lambda m, b: m(b[0]).mean(), data,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1), 4,
    )  # fmt: skip


def timed(task: Task, batch: int, length: int) -> dict[str, float]:
    graph = substitute(capture(task), batch)
    with torch.no_grad():
        return seconds_in_turn(stretches_of([graph], length), lambda n: None, total=0.01).places


@pytest.mark.parametrize("length", [1, 4, 128])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", ACTS)
def test_operators_that_look_at_values_are_timed(name: str, batch: int, length: int) -> None:
    assert all(seconds > 0 for seconds in timed(picky(name), batch, length).values())


@pytest.mark.parametrize("batch", [1, 3])
def test_bags_begin_where_bags_begin(batch: int) -> None:
    data = [(torch.randint(0, 50, (5,)),) for _ in range(32)]
    task = replace(picky("draws by probabilities"), name="bags", model=Bags, data=data)
    graph = substitute(capture(task), batch)
    (place,) = [i for i, o in enumerate(graph.operators) if "_embedding_bag." in o.target]
    (bag,) = make(Stretch(graph, place, place + 1))
    offsets = [v for v in bag.sets[0].values() if isinstance(v, torch.Tensor) and v.shape == (batch,)]
    assert any(torch.equal(one, 5 * torch.arange(batch)) for one in offsets) or batch == 1
    assert all(seconds > 0 for seconds in timed(task, batch, 128).values())
