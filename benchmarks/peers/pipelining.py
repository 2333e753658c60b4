"""torch.distributed.pipelining on a chain of modules, a stage a rank.

    pipelining.py gpipe|1f1b TASK [STEPS] [MICROBATCHES]     with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT set

TASK  FILE.py:function, returning a Task whose model is a chain: a Sequential, features and classifier, or the Gpt here

Stages are cut where the slowest is quickest, by each module's own forward and backward. Rank 0 prints a line of JSON as
the given peers do; like them it takes the same batch in every step.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from itertools import combinations, pairwise
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from partita.task import load_task
from partita.zoo.gpt import Gpt

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class Embedding(nn.Module):
    """What a Gpt does before its blocks."""

    def __init__(self, model: Gpt) -> None:
        super().__init__()
        self.tokens, self.places = model.tokens, model.places

    def forward(self, tokens: Tensor) -> Tensor:
        return self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))  # type: ignore[no-any-return]


def chain(model: Any) -> list[nn.Module]:
    """The modules that a model calls one after the other."""
    if isinstance(model, nn.Sequential):
        return list(model)
    if isinstance(model, Gpt):
        return [Embedding(model), *model.blocks, model.norm, model.head]
    if hasattr(model, "features") and hasattr(model, "classifier"):
        return [*model.features, *model.classifier]
    raise SystemExit(f"{type(model).__name__} is no chain of modules that this script knows")


def seconds_of(modules: list[nn.Module], batch: Tensor, turns: int = 5) -> list[float]:
    """The least time of forward and backward of each module on its part of a batch."""
    found, value = [], batch
    for module in modules:
        best = float("inf")
        for _ in range(turns):
            given = value.detach().requires_grad_(value.is_floating_point())
            start = time.perf_counter()
            made = module(given)
            if made.requires_grad:
                made.sum().backward()
            best = min(best, time.perf_counter() - start)
        module.zero_grad()
        found.append(best)
        value = made
    return found


def balanced(seconds: list[float], stages: int) -> list[int]:
    """The first module of each stage and the number of modules, where the slowest stage is quickest."""
    count = len(seconds)
    every = ([0, *cuts, count] for cuts in combinations(range(1, count), stages - 1))
    return min(every, key=lambda cuts: max(sum(seconds[a:b]) for a, b in pairwise(cuts)))


def criterion(logits: Tensor, target: Tensor) -> Tensor:
    """The mean cross-entropy, over tokens where these are what is told apart."""
    return F.cross_entropy(logits.flatten(0, target.dim() - 1), target.flatten())


def main() -> None:
    mode, spec = sys.argv[1:3]
    steps, microbatches = (int(sys.argv[i]) if len(sys.argv) > i else n for i, n in ((3, 20), (4, 4)))
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    task = load_task(spec)
    torch.manual_seed(0)
    modules = chain(task.model())
    samples, labels = torch.utils.data.default_collate([task.data[i] for i in range(task.batch_size)])[:2]
    cuts = torch.zeros(world + 1, dtype=torch.int64)
    if rank == 0:
        cuts = torch.tensor(balanced(seconds_of(modules, samples[: task.batch_size // microbatches]), world))
    dist.broadcast(cuts, 0)
    part = nn.Sequential(*modules[int(cuts[rank]) : int(cuts[rank + 1])])
    stage = PipelineStage(part, rank, world, torch.device("cpu"))
    schedule = SCHEDULES[mode](stage, microbatches, criterion)
    optimizer = task.optimizer(part.parameters())
    given: tuple[Tensor, ...] = (samples,) if rank == 0 else ()
    last: dict[str, Any] = {"target": labels, "losses": []} if rank == world - 1 else {}

    def step() -> None:
        optimizer.zero_grad()
        schedule.step(*given, return_outputs=False, **last)
        optimizer.step()

    seconds = timed(step, steps)
    if rank == 0:
        print(json.dumps({"mode": mode, "task": spec, "step_seconds": seconds, "cuts": cuts.tolist()}), flush=True)
    os._exit(0)


def timed(step: Callable[[], None], steps: int) -> float:
    """Seconds a step over `steps` steps after three."""
    for _ in range(3):
        step()
    dist.barrier()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    dist.barrier()
    return (time.perf_counter() - start) / steps


if __name__ == "__main__":
    main()
