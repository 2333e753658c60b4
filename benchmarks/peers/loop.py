"""The plain loop that people write: a DataLoader, forward, backward, update. On one device.

    loop.py single TASK [STEPS]     prints a line of JSON as the given peers do; these take the same batch in every step

TASK  FILE.py:function, returning a Task
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from partita.task import load_task


def batches(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def main() -> None:
    mode, spec, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 20
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    task = load_task(spec)
    torch.manual_seed(0)
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    loader = DataLoader(task.data, task.batch_size, shuffle=True, drop_last=True, collate_fn=task.collate)
    start = 0.0
    for step, batch in zip(range(steps + 3), batches(loader), strict=False):
        if step == 3:
            start = time.perf_counter()
        optimizer.zero_grad()
        loss = task.loss(model, batch)
        (loss[0] / loss[1] if isinstance(loss, tuple) else loss).backward()
        optimizer.step()
    seconds = (time.perf_counter() - start) / steps
    print(json.dumps({"mode": mode, "task": spec, "step_seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
