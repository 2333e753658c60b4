"""A training loop as somebody might have written it, on two ranks: `loop_of_ones_own.py DIRECTORY PLAN ...`, one plan
after the other. Rank r leaves its weights under plan k in DIRECTORY/k.r."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import partita as pt
from tests.ranks import forked

STEPS, BATCH, SAMPLES = 5, 11, 33


def made(seed: int) -> tuple[nn.Module, torch.optim.Optimizer, DataLoader[Any]]:
    """A perceptron in fp64, and minibatches that two ranks cannot divide equally, drawn by a generator of their own."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    draw = torch.Generator().manual_seed(7)
    data = TensorDataset(torch.randn(SAMPLES, 6, generator=draw).double(), torch.arange(SAMPLES) % 3)
    sampler = RandomSampler(data, generator=torch.Generator().manual_seed(seed))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, DataLoader(data, batch_size=BATCH, sampler=sampler)


def loop(model: Any, optimizer: torch.optim.Optimizer, loader: Any, steps: int = STEPS) -> None:
    """The user's own: two backwards a step, of which one reaches a layer, clipped gradients, several epochs."""
    left = steps
    while True:
        for x, y in loader:
            nn.functional.cross_entropy(model(x), y).backward()
            (0.1 * model[2](torch.tanh(model[0](x))).square().mean(1)).mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            left -= 1
            if not left:
                return


def main(rank: int, place: Path, plan: str, out: Path) -> None:
    """Train, and keep this rank's weights. The model and the draws begin otherwise on each rank; rank 0's count."""
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
    model, optimizer, loader = pt.apply(plan, *made(3 + rank))
    loop(model, optimizer, loader)
    torch.save(model.state_dict(), f"{out}.{rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    where = Path(sys.argv[1])

    def each(rank: int) -> None:
        for k, plan in enumerate(sys.argv[2:]):
            main(rank, where / f"meet{k}", plan, where / str(k))

    forked(each, 2)
