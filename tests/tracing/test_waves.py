"""Fourier transforms over windows, there and back, of which torch asks whether the windows cover all."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from partita.oracles.check import TOLERANCE, checked
from partita.recipes.catalogue import call
from partita.task import Task
from tests.captures import capture
from tests.small import cluster_of


class Vocoder(nn.Module):
    """Masks what it hears by frequencies."""

    window: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.mask = nn.Linear(9, 9)
        self.register_buffer("window", torch.hann_window(16))

    def forward(self, x: Tensor) -> Tensor:
        waves = torch.stft(x, 16, 4, window=self.window, return_complex=True)
        mask = self.mask(waves.abs().transpose(1, 2)).sigmoid().transpose(1, 2)
        return torch.istft(waves * mask, 16, 4, window=self.window, length=x.shape[1])


def apart(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    """In the complex spectrum."""
    ours, theirs = (torch.stft(x, 16, 4, window=model.window, return_complex=True) for x in (model(batch[0]), batch[1]))
    return (ours - theirs).abs().square().mean()


def test_windows_of_waves_there_and_back_are_traced() -> None:
    drawn, machines = torch.Generator().manual_seed(0), cluster_of(2)
    data = TensorDataset(torch.randn(32, 48, generator=drawn), torch.randn(32, 48, generator=drawn))
    task = Task("vocoder", Vocoder, apart, data, partial(torch.optim.SGD, lr=0.05), batch_size=8)
    graph = capture(task)
    assert (graph.rung, graph.symbolic) == ("dispatch", True)
    found = checked(task, lambda step: call("ddp", step, machines), machines)
    assert found["max_difference"] <= TOLERANCE, found["because"]
