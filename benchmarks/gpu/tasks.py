"""The measured models, each on one minibatch that lies in pinned memory: nobody's step waits for samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch
from torch import nn
from torch.utils._pytree import tree_map

from partita import api
from partita.task import Task
from partita.tracing.prepare import read_batch


@dataclass(frozen=True)
class Held:
    """`count` samples of which the first ones of `batch` are read, whichever are asked for; over again for more."""

    count: int
    batch: Any

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, position: int) -> Any:
        return tree_map(lambda leaf: leaf[position % len(leaf)], self.batch)

    def collated(self, positions: Sequence[int]) -> Any:
        count = len(positions)

        def first(leaf: torch.Tensor) -> torch.Tensor:
            return leaf[:count] if count <= len(leaf) else leaf[torch.arange(count) % len(leaf)]

        return tree_map(first, self.batch)


def held(name: str, batch: int = 0) -> Task:
    """A built-in task on one minibatch, of `batch` samples where its own is not meant."""
    task = api.load(name)
    size = batch or task.batch_size
    drawn = read_batch(task, task.data, [i % len(task.data) for i in range(size)])
    if torch.cuda.is_available():
        drawn = tree_map(lambda leaf: leaf.pin_memory(), drawn)
    return replace(task, data=Held(64 * size, drawn), batch_size=size, collate=None, validation=None)


def tiny() -> Task:
    """One matrix product: what a process takes of a card besides tensors."""
    batch = torch.randn(64, 256), torch.zeros(64, dtype=torch.int64)
    optimizer = partial(torch.optim.SGD, lr=0.1)
    loss: Callable[..., torch.Tensor] = lambda model, b: nn.functional.cross_entropy(model(b[0]), b[1])  # noqa: E731
    return Task("tiny", lambda: nn.Linear(256, 256), loss, Held(4096, batch), optimizer, 64)


alexnet = partial(held, "alexnet", 128)
vgg16 = partial(held, "vgg16", 64)
resnet50 = partial(held, "resnet50", 64)
inception3 = partial(held, "inception3", 64)
rnnlm = partial(held, "rnnlm", 128)
gpt2_small = partial(held, "gpt2-small", 8)
gpt2_medium = partial(held, "gpt2-medium", 4)
bert_large = partial(held, "bert-large", 16)
unet = partial(held, "unet", 256)
bytes_gpt = partial(held, "bytes-gpt", 256)

TIMED: Final = (
    "alexnet", "vgg16", "resnet50", "inception3", "rnnlm", "gpt2_small", "gpt2_medium", "bert_large",
)  # fmt: skip
FILLED: Final = (*TIMED, "unet", "bytes_gpt")
