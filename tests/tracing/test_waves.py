"""Fourier transforms over windows, there and back, of which torch asks whether the windows cover all."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from partita.graph.text import read_graph, write_graph
from partita.oracles.check import TOLERANCE, checked
from partita.recipes.catalogue import call
from partita.task import Task
from tests.captures import capture
from tests.small import cluster_of

RATE: Final = partial(torch.optim.SGD, lr=0.05)


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
    task = Task("vocoder", Vocoder, apart, data, RATE, batch_size=8)
    graph = capture(task)
    assert (graph.rung, graph.symbolic) == ("dispatch", True)
    found = checked(task, lambda step: call("ddp", step, machines), machines)
    assert found["max_difference"] <= TOLERANCE, found["because"]


class Oscillators(nn.Module):
    """A layer of state spaces: what it convolves with is a sum of damped oscillations (S4D, Gu et al., 2022)."""

    def __init__(self) -> None:
        super().__init__()
        self.damped, self.turned = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.arange(4.0))
        self.mixed = nn.Parameter(torch.ones(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        rates = -torch.exp(self.damped) + 1j * self.turned
        shown = torch.exp(rates[:, None] * torch.arange(x.shape[1]))
        kernel = (torch.view_as_complex(self.mixed)[:, None] * shown).sum(0).real
        length = 2 * x.shape[1]
        return torch.fft.irfft(torch.fft.rfft(x, length) * torch.fft.rfft(kernel, length), length)[:, : x.shape[1]]


def test_complex_numbers_in_a_step_are_traced(tmp_path: Path) -> None:
    drawn, machines = torch.Generator().manual_seed(0), cluster_of(2)
    data = TensorDataset(torch.randn(32, 12, generator=drawn))
    task = Task("oscillators", Oscillators, lambda m, b: m(b[0]).square().mean(), data, RATE, batch_size=8)
    graph = capture(task)
    assert (graph.rung, graph.symbolic) == ("dispatch", True)
    write_graph(graph, tmp_path / "g.json")
    assert read_graph(tmp_path / "g.json") == graph
    found = checked(task, lambda step: call("ddp", step, machines), machines)
    assert found["max_difference"] <= TOLERANCE, found["because"]
