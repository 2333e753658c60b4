"""Tasks that cannot be trained, each wrong in one way; the command line loads them as a file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from partita.task import Task
from tests.small import Numbers, perceptron

A_NUMBER = 7


def with_(**changes: Any) -> Task:
    return replace(perceptron(), **changes)


def cross_entropy(model: Any, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


class Samples(Numbers):
    """Numbers, each sample put through a function of itself and its place."""

    def __init__(self, change: Callable[[torch.Tensor, torch.Tensor, int], Any]) -> None:
        super().__init__()
        self.change = change

    def __getitem__(self, index: int) -> Any:
        return self.change(*super().__getitem__(index), index)


class Changing(nn.Module):
    """Changes a weight in place as it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.inner.weight.mul_(0.99)
        return self.inner(x)


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)
        self.sparse = nn.Parameter(torch.eye(6).to_sparse())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(torch.sparse.mm(self.sparse, x.t()).t())


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)
        self.phases = nn.Parameter(torch.ones(3, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.inner(x) * self.phases).abs()


class Restless(nn.Module):
    """A buffer that wants to be trained, or (`early`) an optimizer in the backward pass."""

    def __init__(self, early: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)
        self.register_buffer("scale", torch.ones(3, requires_grad=not early))
        if early:
            self.inner.weight.register_post_accumulate_grad_hook(lambda weight: None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.scale


def complex_weight() -> Task:
    return with_(model=Complex)


def lazy() -> Task:
    return with_(model=lambda: nn.LazyLinear(3))


def trains_a_buffer() -> Task:
    return with_(model=lambda: Restless(False))


def steps_early() -> Task:
    return with_(model=lambda: Restless(True))


def sparse_gradient() -> Task:
    return with_(
        model=lambda: nn.Sequential(nn.Embedding(9, 3, sparse=True)), loss=lambda model, batch: model(batch[1]).mean()
    )


def watches_the_loss() -> Task:
    return with_(schedule=torch.optim.lr_scheduler.ReduceLROnPlateau)


def wants_a_closure() -> Task:
    return with_(optimizer=torch.optim.LBFGS)


def no_module() -> Task:
    return with_(model=lambda: 5)


def no_parameters() -> Task:
    return with_(model=nn.Identity)


def frozen() -> Task:
    return with_(model=lambda: nn.Linear(6, 3).requires_grad_(False))


def other_inputs() -> Task:
    return with_(model=lambda: nn.Bilinear(6, 6, 3))


def no_scalar() -> Task:
    return with_(loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none"))


def detached() -> Task:
    return with_(loss=lambda model, batch: cross_entropy(model, batch).detach())


def no_tensor() -> Task:
    return with_(loss=lambda model, batch: 3.0)


def changes_a_parameter() -> Task:
    return with_(model=Changing)


def sparse() -> Task:
    return with_(model=Sparse)


def fails() -> Task:
    raise RuntimeError("my own bug")


def leaves() -> Task:
    raise SystemExit(0)


def wants(what: str) -> Task:
    return perceptron()


def is_none() -> int:
    return 5


def no_model() -> Task:
    return with_(model=lambda: nn.Linear("six", 3))


def no_length() -> Task:
    return with_(data=iter([1]))


def no_samples() -> Task:
    return with_(data=[])


def too_few() -> Task:
    return with_(data=Numbers(5))


def no_batch() -> Task:
    return with_(batch_size=0)


def no_bound() -> Task:
    return with_(clip_norm=-1.0)


def samples_of_nothing() -> Task:
    return with_(data=Samples(lambda x, y, index: None))


def data_fails() -> Task:
    return with_(data=Samples(lambda x, y, index: 1 // 0))


def no_optimizer() -> Task:
    return with_(optimizer=lambda parameters: 5)


def leaves_out() -> Task:
    return with_(optimizer=lambda parameters: torch.optim.SGD(list(parameters)[:1], lr=0.1))


def wide_model() -> Task:
    return with_(model=lambda: nn.Linear(6, 3).double())


def short_model() -> Task:
    return with_(model=lambda: nn.Linear(6, 3).bfloat16())


def labels_beyond() -> Task:
    return with_(data=Samples(lambda x, y, index: (x, y + 90)))


def bad_rate() -> Task:
    return with_(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=-1))


def leaves_early() -> Task:
    return with_(model=lambda: sys.exit(7))


class Tiring(nn.Linear):
    """Raises what torch does not, once it has been called some times in this process."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Tiring.calls += 1
        if Tiring.calls > 8:
            raise KeyError("late")
        return super().forward(x)


def tires() -> Task:
    return with_(model=lambda: Tiring(6, 3))
