"""Started on each device of a lab: rank 0 sends a row of messages, while rank 1 sends it one. Prints the seconds until
that one has come, and until all are gone."""

from __future__ import annotations

import json
import os
import time

import torch
import torch.distributed as dist

from partita.runs.world import join_world
from partita.transport.processes import Processes

MANY, ELEMENTS, PATIENCE = 48, 2**18, 60.0


def main() -> None:
    rank = int(os.environ["RANK"])
    join_world(rank, int(os.environ["WORLD_SIZE"]), PATIENCE)
    transport = Processes(rank)
    transport.join([], PATIENCE, messages=True)
    tensors = [torch.zeros(ELEMENTS) for _ in range(MANY + 1)]
    dist.barrier()
    begun = time.perf_counter()
    if rank == 0:
        row = [transport.send(tensor, 1, f"row{i}", 0) for i, tensor in enumerate(tensors[:MANY])]
        time.sleep(0.05)  # rank 1 has said where they go
        assert transport.receive(tensors[MANY], 1, "back", 0).block(PATIENCE)
        came = time.perf_counter() - begun
        assert all(message.block(PATIENCE) for message in row)
        print(json.dumps({"came": came, "gone": time.perf_counter() - begun}))
    if rank == 1:
        row = [transport.receive(tensor, 0, f"row{i}", 0) for i, tensor in enumerate(tensors[:MANY])]
        assert transport.send(tensors[MANY], 0, "back", 0).block(PATIENCE)
        assert all(message.block(PATIENCE) for message in row)
    dist.barrier()


main()
