"""The perceptron on seeded numbers with weights and data in fp64, so that real processes can be held to 1e-9."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from partita.task import Task
from tests.small import Numbers, perceptron


class Doubled(Numbers):
    def __init__(self) -> None:
        super().__init__()
        self.x = self.x.double()


def _model() -> nn.Module:
    return perceptron().model().double()


def doubled() -> Task:
    return replace(perceptron(), name="doubled", model=_model, data=Doubled(), precision="fp64")
