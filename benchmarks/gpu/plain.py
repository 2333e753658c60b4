"""The loop that anybody would write, on a card: what `single` is held to."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from partita.task import Task


class Plain:
    """A model, its optimizer and its samples; in bf16 the weights that compute are short copies of masters."""

    def __init__(self, task: Task, device: str, short: bool, compiled: bool) -> None:
        torch.manual_seed(0)
        self.task, self.device, self.short = task, device, short
        self.model: Any = task.model().to(device).train()
        self.own: list[torch.Tensor] = [p for p in self.model.parameters() if p.requires_grad]
        self.masters = self.own
        if short:
            self.masters = [p.detach().clone() for p in self.own]
            self.model.to(torch.bfloat16)
        self.optimizer = task.optimizer(self.masters)
        self.step: Callable[[], None] = self._step
        self.forward: Any = torch.compile(self._loss, dynamic=False) if compiled else self._loss

    def _loss(self, batch: Any) -> Any:
        return self.task.loss(self.model, batch)

    def _batch(self) -> Any:
        batch = self.task.data.collated(range(self.task.batch_size))
        batch = tree_map(lambda leaf: leaf.to(self.device, non_blocking=True), batch)
        if not self.short:
            return batch
        return tree_map(lambda leaf: leaf.to(torch.bfloat16) if leaf.is_floating_point() else leaf, batch)

    def _step(self) -> None:
        loss = self.forward(self._batch())
        if isinstance(loss, tuple):
            loss = loss[0] / loss[1]
        loss.backward()
        if self.short:
            for master, p in zip(self.masters, self.own, strict=True):
                assert p.grad is not None
                master.grad = p.grad.float()
            self.optimizer.step()
            with torch.no_grad():
                torch._foreach_copy_(self.own, self.masters)
        else:
            self.optimizer.step()
        for p in self.own:
            p.grad = None

    def seconds(self, steps: int, discard: int = 3) -> float:
        """Seconds of one of so many steps, after some that do not count."""
        for _ in range(discard):
            self.step()
        torch.cuda.synchronize(self.device)
        begun = time.perf_counter()
        for _ in range(steps):
            self.step()
        torch.cuda.synchronize(self.device)
        return (time.perf_counter() - begun) / steps
