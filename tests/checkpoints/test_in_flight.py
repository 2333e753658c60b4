"""What is in flight in a checkpoint is applied alike on all ranks of another plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from partita.checkpoints.checkpoint import SavePolicy
from partita.checkpoints.restore import open_checkpoint
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from tests.captures import capture
from tests.small import cluster_of, perceptron


class Tied(nn.Module):
    """A weight at both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.last.weight = self.first.weight

    def forward(self, x: Any) -> Any:
        return self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))


@pytest.mark.parametrize("plan", ["gpipe(stages=2)", "one_f_one_b(stages=3,microbatches=2)", "zero2"])
def test_a_bound_on_what_is_in_flight_is_the_same_bits_everywhere(plan: str, tmp_path: Path) -> None:
    """Stages hold other buckets, and owners other parts, of the gradient whose norm is bounded."""
    task = replace(perceptron(), model=Tied, clip_norm=0.05, optimizer=lambda p: torch.optim.AdamW(p, lr=0.05))
    graph, machines = capture(task), cluster_of(3)
    before, after = (call(text, graph, machines) for text in ("ddp(bucket_bytes=100)", plan))
    end, _ = train_in_process(task, graph, before, machines, 4, keyed=True)
    train_in_process(task, graph, before, machines, 6, keyed=True, keep=SavePolicy(str(tmp_path), 4))
    saved = open_checkpoint(tmp_path / "checkpoints" / "step-4")
    assert saved.manifest.flying
    states, _ = train_in_process(task, graph, after, machines, 4, keyed=True, saved=saved)
    for name in ("first.weight", "last.bias"):
        held = [state.leaves[name] for state in states.values() if name in state.leaves]
        assert all(torch.equal(one, held[0]) for one in held)
        torch.testing.assert_close(held[0], end[0].leaves[name], rtol=1e-6, atol=1e-7)
