"""Where the pieces of buckets lie."""

from __future__ import annotations

import pytest
import torch

from partita.api import plan_of
from partita.cluster.text import load_cluster
from partita.lowering.layout import ALIGNED
from partita.lowering.lower import last_program
from partita.runtime.state import make_state
from partita.task import Task
from partita.tracing.capture import capture


def odd_layers() -> Task:
    """Biases of 3 and 5 numbers between weights of 24 and 40."""

    def model() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(8, 3), torch.nn.Linear(3, 8), torch.nn.Linear(8, 5))

    def loss(model: torch.nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        return (model(batch[0]) ** 2).mean()

    data = torch.utils.data.TensorDataset(torch.randn(16, 8))
    return Task("odd layers", model, loss, data, torch.optim.SGD, 4)


@pytest.mark.parametrize("text", ["ddp", "ddp(bucket_bytes=0)", "ddp(bucket_bytes=100)", "p3(slice_bytes=40)"])
def test_matrices_begin_where_cards_multiply_them_fast(text: str) -> None:
    """Also behind biases of 3 and 5 numbers; a matrix that is cut into several buckets is whole all the same."""
    task, cluster = odd_layers(), load_cluster("local:2")
    graph = capture(task)
    program = last_program(graph, plan_of(text, graph, cluster), cluster)
    values = {name: torch.randn_like(p) for name, p in task.model().named_parameters()}
    state = make_state(graph, program, program.roles[0], task, values, "cpu", 0)
    begun = {name: leaf for name, leaf in state.leaves.items() if name in values}
    assert all(torch.equal(leaf, values[name]) for name, leaf in begun.items())
    cut = {piece.parameter for bucket in program.trained for piece in bucket.pieces if piece.stop >= 0}
    if not cut:
        assert not [name for name, leaf in begun.items() if leaf.dim() > 1 and leaf.storage_offset() % ALIGNED]
    held = [piece.parameter for bucket in program.trained for piece in bucket.pieces if piece.last]
    assert sorted(held) == sorted(values)
