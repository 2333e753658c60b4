"""The two tasks on real data at several rates: `digits_cnn_0_05` learns with 0.05."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch

from partita import api

RATES = {"digits-cnn": (0.2, 0.1, 0.05, 0.025, 0.0125), "bytes-gpt": (4e-3, 2e-3, 1e-3, 5e-4, 2.5e-4)}


def name_of(task: str, rate: float) -> str:
    return f"{task}_{rate:g}".replace("-", "_").replace(".", "_")


def at_rate(task: str, rate: float) -> Callable[[], Any]:
    def made() -> Any:
        given = api.load(task)

        def optimizer(parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
            found = given.optimizer(parameters)
            for group in found.param_groups:
                group["lr"] = rate
            return found

        return replace(given, optimizer=optimizer)

    return made


for _task, _rates in RATES.items():
    for _rate in _rates:
        globals()[name_of(_task, _rate)] = at_rate(_task, _rate)
