"""A batch that is not what was captured is told of in a sentence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from partita.errors import Ended, TaskError
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runtime.feed import Feed
from partita.runtime.workload import Workload
from partita.task import Task
from tests.captures import capture
from tests.small import Numbers, cluster_of, perceptron


class Longer(Numbers):
    """The second half of the samples has a number more, or brings a note besides."""

    def __init__(self, note: bool) -> None:
        super().__init__()
        self.note = note

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        if index < len(self) // 2:
            return x, y
        return (x, y, torch.ones(1)) if self.note else (torch.cat([x, torch.ones(1)]), y)


def padded(samples: list[Any]) -> tuple[Any, ...]:
    """To the longest of the batch; with a note where any sample has one."""
    x = nn.utils.rnn.pad_sequence([sample[0] for sample in samples], batch_first=True)
    notes = [torch.ones(len(samples))] if any(len(sample) > 2 for sample in samples) else []
    return x, torch.stack([sample[1] for sample in samples]), *notes


def uneven(note: bool) -> Task:
    def loss(model: Any, batch: Any) -> Any:
        return nn.functional.cross_entropy(model(batch[0].mean(1, keepdim=True)), batch[1])

    return replace(
        perceptron(), name="uneven", model=lambda: nn.Linear(1, 3), loss=loss, data=Longer(note), collate=padded
    )


@pytest.mark.parametrize(
    ("note", "sentence"),
    [
        (False, r"input\.0 of a batch of 'uneven' has the shape \[6, 7\] in step 0, .* captured for \[6, 6\]"),
        (True, r"a batch of 'uneven' has 3 tensors in step 0, .* captured for 2"),
    ],
)
def test_a_batch_of_another_shape_is_refused(note: bool, sentence: str) -> None:
    task, machines = uneven(note), cluster_of(2)
    graph = capture(replace(task, data=Numbers()))  # whose samples are all alike
    with pytest.raises(TaskError, match=sentence):
        train_in_process(Workload(task, graph), call("ddp", graph, machines), machines, 1)


@pytest.mark.parametrize("note", [False, True])
def test_samples_that_are_seen_to_differ_are_not_traced(note: bool) -> None:
    task, machines = uneven(note), cluster_of(2)
    graph = capture(task)
    assert graph.rung == "opaque"
    assert train_in_process(Workload(task, graph), call("ddp", graph, machines), machines, 2)[1]


class Leaving(Numbers):
    """Code that reads a sample leaves by itself, or a signal ends the process."""

    def __init__(self, stop: SystemExit) -> None:
        super().__init__()
        self.stop = stop

    def __getitem__(self, index: int) -> Any:
        raise self.stop


def test_a_data_set_that_leaves_is_told_of_and_a_signal_ends_the_rank() -> None:
    with pytest.raises(TaskError, match=r"reading samples \[3, 5\]... of 'perceptron' failed \(SystemExit: 0\)"):
        Feed(replace(perceptron(), data=Leaving(SystemExit(0))), 0).read([3, 5], "cpu")
    with pytest.raises(Ended):
        Feed(replace(perceptron(), data=Leaving(Ended(143))), 0).read([3, 5], "cpu")
