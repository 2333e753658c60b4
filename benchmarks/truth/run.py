"""Published peak memory of Llama 3 8B under sharded data parallelism against predictions from the captured step alone.

    run.py [--truth ../shared/truth]

Nothing is fitted. A line for each published bf16 row with a peak, then the mean of |predicted / measured - 1|. What is
published is what the caching allocator held (max_reserved), so the step's values, with what selective recomputation
computes again, are replayed through one (`partita.cost.allocator`), as sharded runs order them: fp32 weights and two
moments over D ranks; the root's weights in bf16 for good, a block's while it is computed; gradients in bf16 until the
block's pass is over, then in the fp32 message; gathers and scattered gradients from streams of their own, which share
no freed memory with what is computed.
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
from partita.cost.allocator import Allocator
from partita.cost.lifetimes import Lifetimes, lifetimes_of
from partita.graph.graph import Graph
from partita.graph.operator import Operator, Ref
from partita.graph.recompute import recomputed
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
    data = Synthetic(64, Tokens(length, int(arguments["vocab_size"])))
    task = Task("llama3-8b-bf16", build, loss, data, torch.optim.AdamW, batch_size=batch, precision="bf16")
    graph = graph_of(task)
    if graph.rung != "dispatch":
        raise SystemExit(graph.blind)
    return graph


def predicted(graph: Graph, batch: int, ranks: int) -> dict[str, Bytes]:
    """Bytes that the allocator holds, stream by stream, for the caching allocator keeps what a stream has freed for
    that stream: what is computed, gathers, scatters; and the sharded weights and moments."""
    sizes = {p.name: p.tensor.elements() for p in graph.parameters}
    step = recomputed(graph, again(graph)).graph
    state = sum(sizes.values()) // ranks
    return {
        "weights and moments": 12 * state,
        "computing": computing(step, lifetimes_of(step, batch), sizes),
        "gathers": gathers(sizes),
        "gradients": 4 * state,
    }


def again(graph: Graph) -> set[str]:
    """What selective recomputation does not keep of a block, as the published runs had it: all but every other product
    of matrices, attention's outputs, and what goes from block to block."""
    forward, found = graph.operators[: graph.forward_length], set[str]()
    products: dict[str, int] = {}
    readers: dict[str, set[str]] = {}
    for operator in forward:
        for ref in operator.reads():
            readers.setdefault(ref.name, set()).add(layer_of(operator))
    for operator in (one for one in forward if layer_of(one)):
        leaves = bool(readers.get(operator.name, set()) - {layer_of(operator)})
        kept = leaves or "scaled_dot_product" in operator.target
        if operator.target in ("aten.mm.default", "aten.addmm.default"):
            products[layer_of(operator)] = products.get(layer_of(operator), 0) + 1
            kept = kept or products[layer_of(operator)] % 2 == 1
        if not kept:
            found.add(operator.name)
    return found


def computing(graph: Graph, lifetimes: Lifetimes, sizes: dict[str, int]) -> Bytes:
    """What the computing stream's allocator holds after a step: the step's values in their order, the unsharded bf16
    weights of the root for good, those of a block while it is computed, and its gradients until its pass is over and
    they lie in the fp32 message that is scattered. The loop holds the logits until there is a loss."""
    pool, final, ends = Allocator(), lifetimes.gradients, dict(lifetimes.last)
    spans = passes(graph)
    logits = next(
        Ref(o.name) for o in reversed(graph.operators[: graph.forward_length]) if o.target == "aten.mm.default"
    )
    ends[lifetimes.root[logits]] = max(ends[lifetimes.root[logits]], graph.forward_length - 1)
    comes: dict[int, list[tuple[Any, Bytes]]] = {}
    goes: dict[int, list[Any]] = {}
    for ref, made in lifetimes.made.items():
        if "float" not in graph.tensor(ref).dtype:  # the published runs make no masks
            continue
        layer = layer_of(graph.operators[made])
        end = spans[layer][-1][1] if ref in final and layer else ends[ref]
        comes.setdefault(made, []).append((ref, lifetimes.size(ref)))
        goes.setdefault(end, []).append(ref)
    for layer, both in spans.items():
        weights = sum(size for name, size in sizes.items() if name.startswith(f"{LAYERS}{layer}."))
        for number, (start, stop) in enumerate(both):
            comes.setdefault(start, []).insert(0, (("weights", layer, number), 2 * weights))
            goes.setdefault(stop, []).append(("weights", layer, number))
        comes.setdefault(both[-1][1], []).append((("message", layer), 4 * weights))
        goes.setdefault(both[-1][1] + 1, []).append(("message", layer))
    pool.take("root", 2 * sum(size for name, size in sizes.items() if not name.startswith(LAYERS)))
    for place in range(len(graph.operators) + 1):
        for key, size in comes.get(place, ()):
            pool.take(key, size)
        for key in goes.get(place, ()):
            pool.give(key)
    return pool.held


def gathers(sizes: dict[str, int]) -> Bytes:
    """What the gathering stream's allocator holds: the root's message, then those of two blocks at once."""
    pool, layers = Allocator(), {name.split(".")[2] for name in sizes if name.startswith(LAYERS)}
    block = sum(size for name, size in sizes.items() if name.startswith(LAYERS)) // len(layers)
    pool.take("root", 2 * (sum(sizes.values()) - block * len(layers)))
    pool.give("root")
    pool.take("one", 2 * block)
    pool.take("next", 2 * block)
    return pool.held


def passes(graph: Graph) -> dict[str, list[tuple[int, int]]]:
    """Where each block's forward and backward pass begin and end."""
    places: dict[str, tuple[list[int], list[int]]] = {}
    for i, operator in enumerate(graph.operators):
        if layer := layer_of(operator):
            places.setdefault(layer, ([], []))[i >= graph.forward_length].append(i)
    return {layer: [(min(each), max(each)) for each in both if each] for layer, both in places.items()}


def layer_of(operator: Operator) -> str:
    """The number of the block that an operator belongs to; "" outside of all."""
    return operator.module.removeprefix(LAYERS).split(".")[0] if operator.module.startswith(LAYERS) else ""


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
