"""A model in fp64 with layers that are worth sending as factors, and others that are not."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from partita.task import Task
from tests.processes.doubled import doubled


def _model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 48), nn.ReLU(), nn.Linear(48, 3),
    ).double()  # fmt: skip


def broad() -> Task:
    return replace(doubled(), name="broad", model=_model)
