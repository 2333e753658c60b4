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
from partita.runtime.workload import Workload
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
    end, _ = train_in_process(Workload(task, graph, keyed=True), before, machines, 4)
    train_in_process(Workload(task, graph, keyed=True), before, machines, 6, keep=SavePolicy(str(tmp_path), 4))
    saved = open_checkpoint(tmp_path / "checkpoints" / "step-4")
    assert saved.manifest.flying
    states, _ = train_in_process(Workload(task, graph, keyed=True), after, machines, 4, saved=saved)
    for name in ("first.weight", "last.bias"):
        held = [state.leaves[name] for state in states.values() if name in state.leaves]
        assert all(torch.equal(one, held[0]) for one in held)
        torch.testing.assert_close(held[0], end[0].leaves[name], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("plan", "ended", "steps"), [
    ("diloco(period=4,fragments=2,lag=1)", 8, 9), ("diloco(period=3,fragments=3,lag=2)", 6, 8),
    ("pipe_sgd(staleness=2,codec=topk(ratio=0.1),ramp=3)", 3, 6),
])  # fmt: skip
def test_what_is_in_flight_at_the_end_of_a_leg_is_applied_before_the_next(
    plan: str, ended: int, steps: int, tmp_path: Path
) -> None:
    """Ahead of a last period that is shorter, or of another phase: a run that ended there and goes on has the bits of
    one that never stopped."""
    task, machines = perceptron(), cluster_of(3)
    work = Workload(task, capture(task), keyed=True)
    made = call(plan, work.graph, machines)
    unbroken, losses = train_in_process(work, made, machines, steps)
    train_in_process(work, made, machines, ended, keep=SavePolicy(str(tmp_path), ended))
    saved = open_checkpoint(tmp_path / "checkpoints" / f"step-{ended}")
    assert saved.manifest.flying
    again, found = train_in_process(work, made, machines, steps, saved=saved)
    assert {step: found[step] for step in range(ended, steps)} == {step: losses[step] for step in range(ended, steps)}
    for rank, state in unbroken.items():
        assert all(torch.equal(flat, again[rank].parameter[name]) for name, flat in state.parameter.items())
