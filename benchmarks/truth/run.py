"""Published peak memory of Llama 3 8B under sharded data parallelism against predictions from the captured step alone.

    run.py [--truth ../shared/truth]

Nothing is fitted. A line for each published bf16 row with a peak, then the mean of |predicted / measured - 1|. A rank
of D holds: 16 bytes a parameter over D (fp32 weights, gradients, two moments), the weights in bf16 of what is gathered
just then (embedding, head and the last block), what selective recomputation keeps of every block (its input,
attention's outputs, every other product of matrices, as the published runs did), and what the head needs at its fullest
moment, from the lives of the graph's values. Only bytes of tensors: what an allocator holds back is not in it.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import torch.nn.functional as F

from partita.api import graph_of
from partita.cost.tides import Tide, tide_of
from partita.graph.graph import Graph
from partita.task import Task
from partita.units import Bytes
from partita.zoo.configs import CONFIGS
from partita.zoo.data import Synthetic, Tokens
from partita.zoo.hugging_face import FromConfig, transformers

LAYERS = "model.layers."
GIB = 2**30


def loss(model: Any, batch: Any) -> torch.Tensor:
    logits = model(input_ids=batch[0], use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1).float(), batch[1].flatten())


def in_bf16(batch: int) -> Graph:
    """The step of Llama 3 8B whose weights are in bf16 while it computes, as sharded runs gather them."""
    kind, arguments, length, _ = CONFIGS["llama3-8b"]
    build = FromConfig(getattr(transformers(), kind)(**arguments), "causal")
    data = Synthetic(64, Tokens(length, arguments["vocab_size"]))
    task = Task("llama3-8b-bf16", build, loss, data, torch.optim.AdamW, batch_size=batch, precision="bf16")
    graph = graph_of(task)
    if graph.rung != "dispatch":
        raise SystemExit(graph.blind)
    return graph


def predicted(graph: Graph, batch: int, ranks: int) -> dict[str, Bytes]:
    tide = tide_of(graph, batch)
    sizes = {p.name: p.tensor.elements() for p in graph.parameters}
    head = sum(size for name, size in sizes.items() if not name.startswith(LAYERS))  # the root stays gathered
    last = max(int(name.split(".")[2]) for name in sizes if name.startswith(LAYERS))
    block = sum(size for name, size in sizes.items() if name.startswith(f"{LAYERS}{last}."))
    return {
        "state": 16 * sum(sizes.values()) // ranks,
        "gathered": 2 * (head + block),
        "kept": sum(kept_of(graph, tide, layer) for layer in range(last + 1)),
        "head": outside(graph, tide),
    }


def kept_of(graph: Graph, tide: Tide, layer: int) -> Bytes:
    """What a block keeps for backward."""
    inside = [
        o for o in graph.operators[: graph.forward_length] if o.module.startswith(f"{LAYERS}{layer}.") and o.outputs
    ]
    products = [o for o in inside if o.target in ("aten.mm.default", "aten.addmm.default")]
    attention = [o for o in inside if "scaled_dot_product" in o.target]
    kept = [tensor for o in (*products[::2], *attention) for tensor in o.outputs if tensor is not None]
    hidden = next(o.outputs[0] for o in reversed(products) if o.outputs[0] is not None)
    return sum(tensor.size(tide.batch) for tensor in (*kept, hidden) if tensor is not None)


def outside(graph: Graph, tide: Tide) -> Bytes:
    """The most bytes alive at once of what is made outside the blocks."""
    changes = [0] * (len(graph.operators) + 2)
    for ref, made in tide.made.items():
        floating = "float" in graph.tensor(ref).dtype  # the published runs make no masks
        if floating and not graph.operators[made].module.startswith(LAYERS):
            changes[made] += tide.size(ref)
            changes[tide.last[ref] + 1] -= tide.size(ref)
    live = most = 0
    for change in changes:
        live += change
        most = max(most, live)
    return most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--truth", type=Path, default=Path(__file__).parents[3] / "shared" / "truth")
    table = parser.parse_args().truth / "torchtitan_llama_dev.csv"
    if not table.exists():
        print(f"{table} is not here; give --truth FOLDER")
        return
    rows = [row for row in csv.DictReader(table.open()) if row["precision"] == "bf16" and row["peak_mem_GiB"]]
    errors = []
    for row in rows:
        batch, ranks = int(row["local_batch"]), int(row["fsdp"])
        parts = predicted(in_bf16(batch), batch, ranks)
        total, measured = sum(parts.values()) / GIB, float(row["peak_mem_GiB"])
        errors.append(abs(total / measured - 1))
        said = ", ".join(f"{name} {size / GIB:.1f}" for name, size in parts.items())
        print(f"{row['date']} {ranks} x {batch}, compile {row['torch_compile']}: {total:.1f} GiB ({said}),", end=" ")
        print(f"measured {measured}, {total / measured - 1:+.1%}", flush=True)
    print(f"{len(errors)} rows, mean {mean(errors):.1%}, max {max(errors):.1%}")


if __name__ == "__main__":
    main()
