"""A training loop of one's own on several processes: the plan goes around the model, the optimizer and the loader.

torchrun --nproc-per-node 2 examples/apply.py [PLAN]
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import partita as pt


def main(plan: str = "ddp") -> None:
    """Train on made-up samples; `local_sgd(period=4)` averages weights instead of gradients."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(512, 16), torch.randint(0, 4, (512,)))
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = pt.apply(plan, model, optimizer, DataLoader(data, batch_size=32, shuffle=True))
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    print(f"the last loss on this rank's samples: {loss:.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
