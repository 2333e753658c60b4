"""The held-out loss on the way under plans of every class, each rank a process: what it is of, and that all end early
together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from partita import api
from partita.checkpoints.checkpoint import SavePolicy
from partita.lab.rehearsal import Rehearsal
from partita.program.held_out import EvaluationPolicy
from partita.runs.result import RunResult
from partita.task import Task
from tests.processes.crews import Crews
from tests.processes.mortal import mortal

TASK = f"{Path(__file__)}:judged"
NEVER = 10**6
PLANS = (
    "ddp", "zero3(bucket_bytes=200)", "one_f_one_b(stages=3,microbatches=2)", "ps_sync(own=false)",
    "local_sgd(period=2)", "d_psgd", "parallel_sgd", "easgd(period=2)", "post_local_sgd(switch=4,period=2)",
)  # fmt: skip


class Other(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples whose labels have nothing to do with those that are learned, so that a loss of them rises."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(8)
        self.x, self.y = torch.randn(20, 6, generator=draw), torch.randint(0, 3, (20,), generator=draw)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]


def judged() -> Task:
    return replace(mortal(), name="judged", validation=Other())


def trained(crew: Rehearsal, plan: str, steps: int, out: Path, every: int = 0, patience: int = 0) -> RunResult:
    """A run that no rank may leave, with and without evaluations."""
    made = api.plan_of(plan, crew.graph, crew.cluster)
    policy = EvaluationPolicy(every, patience)
    return crew.train(made, steps=steps, keep=SavePolicy(str(out), NEVER), evaluation=policy)


def bits(result: RunResult) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in load_file(result.weights).items()}


@pytest.mark.parametrize("plan", PLANS)
def test_it_is_what_a_shorter_run_ends_with_and_changes_nothing(plan: str, crews: Crews, tmp_path: Path) -> None:
    crew = crews(TASK, "local:3")
    found = trained(crew, plan, 8, tmp_path / "judged", every=4)
    plain = trained(crew, plan, 8, tmp_path / "plain")
    short = trained(crew, plan, 4, tmp_path / "short")
    assert bits(found) == bits(plain)
    assert [loss for _, _, loss in found.loss] == [loss for _, _, loss in plain.loss]
    assert found.evaluations == ((4, short.final_loss), (8, plain.final_loss))


@pytest.mark.parametrize("plan", ["ddp", "one_f_one_b(stages=3,microbatches=2)", "d_psgd", "ps_async", "hogwild"])
def test_all_ranks_end_early_together(plan: str, crews: Crews, tmp_path: Path) -> None:
    """Whatever they do when they end: apply what is in flight, take what servers have, the mean."""
    result = trained(crews(TASK, "local:3"), plan, 400, tmp_path, every=2, patience=2)
    steps = [step for step, _ in result.evaluations]
    assert steps[-1] < 400
    assert len(result.loss) == steps[-1]
    assert result.timeline.step_seconds > 0
    assert {span.round for span in result.timeline.spans} <= set(range(steps[-1]))  # what is applied last is no step
    losses = [loss for _, loss in result.evaluations]
    assert min(losses[-2:]) >= min(losses[:-2])
