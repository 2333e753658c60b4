"""Tests may share a capture only where it would be the same."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import nn

from partita.tracing import capture as tracing
from tests.captures import capture
from tests.small import Numbers, perceptron


def test_what_is_alike_is_captured_once() -> None:
    graph = capture(perceptron())
    assert graph == tracing.capture(perceptron())
    assert capture(replace(perceptron(), data=Numbers())) is graph
    assert capture(replace(perceptron(), optimizer=partial(torch.optim.SGD, lr=7.0, momentum=0.9))) is graph


def test_what_differs_is_not_shared() -> None:
    def wide(size: int) -> nn.Module:
        return nn.Sequential(nn.Linear(6, size), nn.Linear(size, 3))

    others = [
        replace(perceptron(), model=partial(wide, 4)), replace(perceptron(), model=partial(wide, 5)),
        replace(perceptron(), loss=lambda model, batch: model(batch[0]).sum()), replace(perceptron(), batch_size=6),
        replace(perceptron(), optimizer=torch.optim.Adam), replace(perceptron(), clip_norm=1.0),
        replace(perceptron(), data=Numbers(24)), replace(perceptron(), name="other"), perceptron(),
    ]  # fmt: skip
    found = [capture(task) for task in others]
    assert len({id(graph) for graph in found}) == len(others)
    assert all(graph == tracing.capture(task) for graph, task in zip(found, others, strict=True))
    assert capture(perceptron(), precision="fp64") is not found[-1]
