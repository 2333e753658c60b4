"""Where a plan's stages may start."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from partita.errors import PlanError
from partita.graph.homes import stage_starts
from partita.task import Task
from tests.captures import capture


class Centred(nn.Module):
    """[n, 6] -> [n, 3], less their running mean (DINO)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 3)
        self.register_buffer("centre", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(torch.tanh(self.first(x))) - self.centre
        self.centre = self.centre * 0.9 + 0.1 * found.detach().mean(0)
        return found


def test_no_stage_parts_who_reads_a_buffer_from_who_changes_it() -> None:
    """Each stage has a copy of what it reads: the reader's would stay what it was."""
    data = TensorDataset(torch.randn(16, 6, generator=torch.Generator().manual_seed(0)))
    loss = lambda model, batch: F.softplus(model(batch[0])).mean()  # noqa: E731
    graph = capture(Task("centred", Centred, loss, data, partial(torch.optim.SGD, lr=0.05), batch_size=8))
    names = [operator.name for operator in graph.operators[: graph.forward_length]]
    (reader,) = (i for i, o in enumerate(graph.operators) if o.target == "aten.sub.Tensor")
    changer = graph.index[dict(graph.mutations)["centre"].name]
    for place in range(1, len(names)):
        if reader < place <= changer:
            with pytest.raises(PlanError, match=f"buffer 'centre'.* {names[reader]!r} or .* behind {names[changer]!r}"):
                stage_starts(graph, ["", names[place]])
        else:
            assert stage_starts(graph, ["", names[place]]) == (0, place)
