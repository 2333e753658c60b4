"""What checkpoints would not hold is refused, or told, before a run that writes some or goes on from one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim

import partita as pt
from partita.errors import TaskError
from partita.tracing.optimizer import check_saved
from tests.small import perceptron
from tests.tracing.test_update_units import RULES


class Lookahead(optim.Optimizer):
    """Slow weights, and a count of steps, beside `state`."""

    def __init__(self, parameters: Iterable[Any]) -> None:
        given = list(parameters)
        self.base, self.steps = optim.SGD(given, lr=0.1), 0
        super().__init__(given, {})
        self.slow = [p.detach().clone() for p in given]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.base.step()
        self.steps += 1
        for group in self.param_groups if self.steps % 5 == 0 else ():
            for slow, p in zip(self.slow, group["params"], strict=True):
                p.copy_(slow.lerp_(p, 0.5))


class Wrapped(optim.Optimizer):
    """AdamW of its own, whose state is not this one's."""

    def __init__(self, parameters: Iterable[Any]) -> None:
        given = list(parameters)
        self.inner = optim.AdamW(given, lr=0.01)
        super().__init__(given, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.inner.step()


class OfMatrices(Wrapped):
    """The same, and takes nothing else than matrices."""

    def __init__(self, parameters: Iterable[Any]) -> None:
        given = list(parameters)
        if any(p.dim() != 2 for p in given):
            raise ValueError("matrices only")
        super().__init__(given)


class Noisy(optim.SGD):
    """Adds what it draws."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step()
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(torch.randn_like(p), alpha=0.01)


class Slowing(optim.SGD):
    """Keeps its count in the settings of a group."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["lr"] *= 0.9
        super().step()


class Counting(nn.Module):
    """Warms up by a counter that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self._step = nn.Linear(6, 3), 0

    def forward(self, x: Any) -> Any:
        self._step += 1
        return self.layer(x) * min(1.0, self._step / 4)


def wrapped() -> pt.Task:
    return replace(perceptron(), name="wrapped", optimizer=Wrapped)


def counting() -> pt.Task:
    return replace(perceptron(), name="counting", model=Counting)


@pytest.mark.parametrize("optimizer", [Lookahead, Wrapped, OfMatrices])
def test_an_optimizer_that_keeps_state_aside_is_found(optimizer: Any) -> None:
    with pytest.raises(TaskError, match=r"outside of its `state`.* keep it in self.state\[parameter\]"):
        check_saved(replace(perceptron(), optimizer=optimizer))


@pytest.mark.parametrize(
    "make",
    [*RULES.values(), *(lambda ps, kind=kind: kind(ps, lr=0.1) for kind in (Noisy, Slowing))],
    ids=[*RULES, "noisy", "slowing"],
)
def test_others_are_held_by_checkpoints(make: Any) -> None:
    check_saved(replace(perceptron(), optimizer=make))


def test_a_run_with_checkpoints_is_refused_before_it_begins(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="'wrapped' keeps what its steps depend on outside"):
        pt.train(f"{__file__}:wrapped", "single", "local:1", steps=2, out=tmp_path, checkpoint_every=1)
    assert not list(tmp_path.iterdir())


def test_a_counter_that_no_checkpoint_holds_is_told(tmp_path: Path) -> None:
    ran = pt.train(f"{__file__}:counting", "single", "local:1", steps=1, out=tmp_path, checkpoint_every=1)
    assert ran is not None
    assert [note for note in ran.notes if "a resumed run is another one: the model changes '_step'" in note]
