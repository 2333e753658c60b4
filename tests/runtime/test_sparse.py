"""Sparse matrices that a model multiplies by, such as the adjacency of a graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from partita.api import plan_of, simulate
from partita.errors import TaskError
from partita.oracles.check import checked
from tests.captures import capture
from tests.small import cluster_of, perceptron

EDGES = torch.eye(6) + torch.diag(torch.ones(5), 1)
LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)


class Convolution(nn.Module):
    """A graph's convolution of features that lie in the samples."""

    def __init__(self, edges: Callable[[torch.dtype], Tensor]) -> None:
        super().__init__()
        self.layer, self.edges = nn.Linear(6, 3), edges

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.layer(torch.relu(self.edges(x.dtype) @ x.t()).t()))


class InParts(Convolution):
    """Its edges are buffers: their places and their values."""

    def __init__(self) -> None:
        super().__init__(lambda dtype: torch.sparse_coo_tensor(self.places, self.values, (6, 6)))
        edges = EDGES.to_sparse()
        self.register_buffer("places", edges.indices())
        self.register_buffer("values", edges.values())


@pytest.mark.parametrize("made", [*LAYOUTS, InParts])
def test_a_model_multiplies_by_a_sparse_matrix(made: torch.layout | type[InParts]) -> None:
    edges = EDGES.to_sparse(layout=made) if isinstance(made, torch.layout) else EDGES
    model = (lambda: Convolution(edges.to)) if isinstance(made, torch.layout) else made
    task, machines = replace(perceptron(), name="convolved", model=model), cluster_of(2)
    for text in ("single", "ddp"):
        found = checked(task, lambda graph, text=text: plan_of(text, graph, machines), machines)
        assert (found["equal"], found["because"]) == (True, "")
    assert simulate(capture(task), "ddp", machines).step_seconds > 0


def test_a_sparse_buffer_is_refused() -> None:
    def model() -> nn.Module:
        made = Convolution(EDGES.to)
        made.register_buffer("adjacency", EDGES.to_sparse())
        return made

    with pytest.raises(TaskError, match=r"'adjacency' is sparse.* register its indices and its values"):
        capture(replace(perceptron(), model=model))
