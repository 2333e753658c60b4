"""Your own model: a function that returns a Task. Every process calls it, so it holds factories, not built things.

partita compare examples/own_task.py:task --cluster local:2 --plans ddp,pipe_sgd --steps 20
python examples/own_task.py
"""

from __future__ import annotations

from functools import partial

import torch
from rich.console import Console
from sklearn.datasets import load_breast_cancer
from torch import nn
from torch.utils.data import TensorDataset

import partita as pt
from partita.report.table import comparison_table


def model() -> nn.Module:
    """[n, 30] measurements -> [n, 2] logits."""
    return nn.Sequential(nn.Linear(30, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """The mean over the batch's samples."""
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def task() -> pt.Task:
    """569 real tumours, one in five held out (Street et al., 1993; comes with scikit-learn)."""
    features, labels = load_breast_cancer(return_X_y=True)
    x = torch.tensor((features - features.mean(0)) / features.std(0), dtype=torch.float32)
    y, held = torch.tensor(labels), torch.arange(len(labels)) % 5 == 0
    return pt.Task(
        name="tumours",
        model=model,
        loss=loss,
        data=TensorDataset(x[~held], y[~held]),
        validation=TensorDataset(x[held], y[held]),
        optimizer=partial(torch.optim.AdamW, lr=1e-3),
        batch_size=32,
    )


def main() -> None:
    """Ask which plan is best, check one, predict and run two. Workers make the task by calling `task` themselves."""
    own, cluster = task(), pt.Cluster.load("local:2")
    print(pt.search(pt.capture(own), cluster).explanation)
    verdict = pt.verify(own, "ddp", cluster)
    print(f"ddp: {verdict.max_difference:.1e} from {verdict.against}")
    found = pt.compare(own, ("ddp", "pipe_sgd"), cluster, steps=20)
    Console(width=160).print(comparison_table(found), *found.notes, sep="\n")


if __name__ == "__main__":
    main()
