"""The loss of CTC, as models of speech call it."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from partita.oracles.check import checked
from partita.recipes.catalogue import call
from partita.task import Task
from tests.captures import capture
from tests.small import cluster_of

TIMES, CLASSES, LONGEST = 10, 5, 3


class Listener(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).tanh()).log_softmax(-1).transpose(0, 1)


def heard(how: str, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    scores, (_, targets, times, lengths) = model(batch[0]), batch
    if how == "module":
        return nn.CTCLoss(zero_infinity=True)(scores, targets, times, lengths)
    if how == "numbers":
        return F.ctc_loss(scores, targets, (TIMES,) * len(targets), lengths)
    return torch.ctc_loss(scores, targets, times, lengths, 0, 0, True).mean()


def speech(how: str) -> Task:
    drawn = torch.Generator().manual_seed(0)
    sounds = torch.randn(32, TIMES, 4, generator=drawn)
    targets = torch.randint(1, CLASSES, (32, LONGEST), generator=drawn)
    times = torch.randint(1, TIMES + 1, (32,), generator=drawn)  # in some no target has room
    lengths = torch.randint(1, LONGEST + 1, (32,), generator=drawn)
    data = TensorDataset(sounds, targets, times, lengths)
    return Task("speech", Listener, partial(heard, how), data, partial(torch.optim.SGD, lr=0.05), batch_size=8)


@pytest.mark.parametrize("how", ["module", "numbers", "calls"])
def test_ctc_is_one_operator_of_any_number_of_samples(how: str) -> None:
    graph = capture(speech(how))
    assert (graph.rung, graph.symbolic) == ("dispatch", True)
    assert [o.target for o in graph.operators if "ctc" in o.target] == [
        "partita.ctc_loss.default", "partita.ctc_loss_backward.default",
    ]  # fmt: skip


@pytest.mark.parametrize("plan", ["ddp", "gpipe(stages=2,microbatches=2)", "ddp(precision=bf16)"])
def test_ctc_is_what_torch_makes_of_it(plan: str) -> None:
    machines = cluster_of(2)
    found = checked(speech("module"), lambda graph: call(plan, graph, machines), machines)
    assert found["equal"], found
