"""The held-out loss on the way: what it is of, that training does not feel it, when it ends a run, and that all of it
goes on after a resume."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

from partita.checkpoints.checkpoint import place_of
from partita.checkpoints.restore import open_checkpoint
from partita.plan.plan import Plan
from partita.recipes.catalogue import call
from partita.runs.execution import run
from partita.runs.session import Job, Session
from partita.task import Task
from tests.captures import capture
from tests.small import cluster_of, perceptron

STEPS, EVERY = 10, 3


class Moody(nn.Module):
    """Batch statistics and dropout; building it draws from NumPy's generator. (From Python's beartype draws, as it
    checks what tests run.)"""

    def __init__(self) -> None:
        super().__init__()
        np.random.random()
        self.layers = nn.Sequential(
            nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3)
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


class Noisy:
    """Samples to which reading adds noise."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        x, y = self.data[index]
        return x + 0.1 * torch.randn(x.shape), y


def moody(rate: float = 0.05) -> Task:
    task = perceptron()
    return replace(
        task, model=Moody, data=Noisy(task.data), validation=Noisy(task.data),
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=rate),
        schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5),
    )  # fmt: skip


def crew_of(task: Task) -> tuple[Session, Plan]:
    """A process that is the only rank, and its plan."""
    session = Session(task, capture(task), cluster_of(1), 0, 0, 1, 60.0)
    session.open()
    return session, call("single", session.graph, session.cluster)


@pytest.fixture(scope="module")
def crew() -> tuple[Session, Plan]:
    return crew_of(moody())


def trained(
    crew: tuple[Session, Plan], steps: int, out: Path | str = "", told: list[Any] | None = None, **more: Any
) -> dict[str, Any]:
    """What a run found; its weights as bytes, if they are written."""
    session, plan = crew
    found = run(session, Job(plan, steps, out=str(out), **more), (told if told is not None else []).append)
    tensors = load_file(found["weights"]) if found["weights"] else {}
    return found | {"bits": {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}}


def test_training_does_not_feel_it_and_it_is_what_a_shorter_run_ends_with(
    crew: tuple[Session, Plan], tmp_path: Path
) -> None:
    told = list[dict[str, Any]]()
    judged = trained(crew, STEPS, tmp_path / "a", told, evaluate_every=EVERY)
    plain = trained(crew, STEPS, tmp_path / "b")
    assert (judged["bits"], judged["losses"]) == (plain["bits"], plain["losses"])
    assert plain["evaluations"] == ()
    ends = tuple((step, trained(crew, step)["final_loss"]) for step in (3, 6, 9, 10))
    assert judged["evaluations"] == ends
    assert [event["held_out"] for event in told if "held_out" in event] == [list(each) for each in ends[:3]]


def test_the_best_weights_stay_in_a_file(crew: tuple[Session, Plan], tmp_path: Path) -> None:
    """Those of the step that was best, or, where that is the last one, the file that is there anyhow."""
    found = trained(crew, STEPS, tmp_path / "run", evaluate_every=EVERY)
    step = min(found["evaluations"][:-1], key=lambda each: float(each[1]))[0]
    best = {name: t.numpy().tobytes() for name, t in load_file(tmp_path / "run" / "best.safetensors").items()}
    assert best == trained(crew, step, tmp_path / "short")["bits"]
    last = min(loss for _, loss in found["evaluations"]) == found["final_loss"]
    assert Path(found["best"]).name == ("model.safetensors" if last else "best.safetensors")


def rising(tmp_path: Path) -> tuple[tuple[Session, Plan], int]:
    """A crew whose held-out loss becomes worse: its labels are others than those that are learned."""
    task = moody(0.05)
    other = [(x, (y + 1) % 3) for x, y in (perceptron().data[i] for i in range(12))]
    return crew_of(replace(task, validation=other)), 40


def test_a_run_ends_once_its_patience_is_at_an_end(tmp_path: Path) -> None:
    """As a run of so many steps would, also where it goes on from any of its checkpoints; not where it has more."""
    crew, steps = rising(tmp_path)
    judge = {"evaluate_every": 2, "patience": 3}
    whole = trained(crew, steps, tmp_path / "whole", every=4, keep=99, **judge)
    ended = whole["evaluations"][-1][0]
    losses = [loss for _, loss in whole["evaluations"]]
    assert ended < steps
    assert losses.index(min(losses)) == len(losses) - 4
    assert len(whole["losses"]) == ended
    assert whole["spans"]
    assert whole["stopped"] is None
    short = trained(crew, ended, tmp_path / "short")
    assert (whole["bits"], whole["final_loss"]) == (short["bits"], short["final_loss"])
    for since in range(4, ended + 1, 4):
        path = place_of(tmp_path / "whole", since)
        again = trained(crew, steps, tmp_path / f"from-{since}", resume=str(path), **judge)
        for what in ("evaluations", "bits", "final_loss"):
            assert again[what] == whole[what], (since, what)
    longer = trained(crew, steps, evaluate_every=2, patience=99)
    assert len(longer["losses"]) == steps


def test_a_checkpoint_knows_what_was_found_before(crew: tuple[Session, Plan], tmp_path: Path) -> None:
    """And a longer run goes on from the last one of a shorter run as if that had not ended."""
    unbroken = trained(crew, 12, tmp_path / "unbroken", evaluate_every=EVERY)
    first = trained(crew, 6, tmp_path / "run", evaluate_every=EVERY, every=4)
    path = place_of(tmp_path / "run", 6)
    assert [step for step, _ in open_checkpoint(path).manifest.evaluations] == [3]
    again = trained(crew, 12, tmp_path / "run", evaluate_every=EVERY, resume=str(path))
    assert first["evaluations"] == unbroken["evaluations"][:2]
    assert (again["evaluations"], again["bits"]) == (unbroken["evaluations"], unbroken["bits"])


def test_best_weights_of_a_future_that_was_lost_are_told(crew: tuple[Session, Plan], tmp_path: Path) -> None:
    trained(crew, 4, tmp_path, evaluate_every=1, every=2, keep=9)
    told = list[dict[str, Any]]()
    again = trained(crew, 4, tmp_path, told, every=9, resume=str(place_of(tmp_path, 2)))
    notes = [event["note"] for event in told if "note" in event]
    assert [f"{tmp_path / 'best.safetensors'} is not of what this run goes on from" in note for note in notes] == [True]
    assert again["best"] == ""


def test_a_loss_that_fails_on_the_way_is_told_once(tmp_path: Path) -> None:
    def in_training_only(model: Any, batch: Any) -> torch.Tensor:
        assert model.training, "asked for in evaluation mode"
        return F.cross_entropy(model(batch[0]), batch[1])

    told = list[dict[str, Any]]()
    found = trained(crew_of(replace(moody(), loss=in_training_only)), 6, "", told, evaluate_every=2, patience=1)
    notes = [event["note"] for event in told if "note" in event]
    assert [note.partition(" is not known")[0] for note in notes] == [
        "the held-out loss from step 2 on", "the run is done, and its held-out loss",
    ]  # fmt: skip
    assert (len(found["losses"]), found["evaluations"], found["final_loss"]) == (6, (), None)
