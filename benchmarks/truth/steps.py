"""Published step times against what data sheets alone predict, table by table.

    steps.py [--truth ../shared/truth] [--tables products-v100,neusight,tensorflow,vtrain,megatron,torchtitan] [--rows]
    steps.py --fit

Inputs are the captured step, the machine's data sheet and the row's plan; no row is looked at before it is predicted.
Beside each table stands the null model FLOPs / (one efficiency x peak), its efficiency fitted on the very table: a
strong one, for it has seen the answers. `bias` is the mean of ln(predicted / measured).
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from math import log
from pathlib import Path
from random import Random
from statistics import mean, median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.truth.run import again
from partita.api import graph_of, plan_of
from partita.cluster.cluster import Cluster
from partita.cluster.text import read_cluster
from partita.cost.datasheet import LAUNCH, datasheet_costs
from partita.cost.kernels import KERNEL, multiplying, streaming
from partita.cost.winograd import filtering
from partita.graph.batch import of_minibatch
from partita.graph.contraction import Contraction
from partita.graph.flops import flops, is_contraction
from partita.graph.graph import Graph
from partita.lowering.lower import last_program
from partita.lowering.precision import format_asked, in_precision
from partita.lowering.samples import sizes_of
from partita.plan.memory import Recompute
from partita.plan.plan import COMPILED
from partita.simulator.simulate import step_seconds
from partita.zoo.convolutional import AlexNet, Vgg16
from partita.zoo.hugging_face import hugging_face, transformers
from partita.zoo.inception import inception3
from partita.zoo.resnet import ResNet50
from partita.zoo.tasks import on_images

Row = dict[str, str]
MACHINE = """
schema = 1
name = "{name}"
[device.card]
backend = "cuda"
flops = {{ {flops} }}
memory_bandwidth = "{bandwidth} GB/s"
{more}
[network]
link = {{ bandwidth = "{link} GB/s", latency = "2 us" }}
members = [{{ device = "card", count = {count} }}]
"""


NODES = """
[network]
link = {{ bandwidth = "{far} GB/s", latency = "2 us" }}
[[network.members]]
name = "node"
count = {count}
link = {{ bandwidth = "{near} GB/s", latency = "1 us" }}
{sums}
members = [{{ device = "card", count = 8 }}]
"""


def machine(flops: str, bandwidth: int, *, more: str = "", link: int = 16, count: int = 1) -> Cluster:
    """Cards on one switch, from what their data sheet says."""
    name = f"{count}-cards"
    text = MACHINE.format(name=name, flops=flops, bandwidth=bandwidth, more=more, link=link, count=count)
    return read_cluster(text, name)


@dataclass(frozen=True)
class Case:
    """One row: seconds measured and predicted, and of the busiest device FLOPs over its peak."""

    name: str
    measured: float
    predicted: float
    ideal: float


def work(graph: Graph, start: int, stop: int, batch: int) -> float:
    """FLOPs of the matrix products and convolutions of some operators."""
    return sum(flops(one, graph, batch) for one in graph.operators[start:stop] if is_contraction(one))


def passes(graph: Graph, cluster: Cluster, batch: int, *, forward: bool) -> float:
    """Seconds of a forward pass, or of both, with neither an optimizer nor messages: the longer of what the device
    takes and what launching takes."""
    costs, stop = datasheet_costs(graph, cluster, (batch,)), graph.forward_length if forward else len(graph.operators)
    sides = [costs, costs.launching] if costs.launching else [costs]
    return max(one.segment(0, stop, batch) for one in sides)


def nodes(flops: str, bandwidth: int, *, more: str, near: int, far: int, ranks: int, sums: str = "") -> Cluster:
    """Cards in nodes of eight, whose links go `near` GB/s inside and `far` GB/s from node to node."""
    if ranks < 8:
        return machine(flops, bandwidth, more=more, link=near, count=ranks)
    head = MACHINE[: MACHINE.index("[network]")]
    known = {"flops": flops, "bandwidth": bandwidth, "more": more, "near": near, "far": far, "sums": sums}
    name = f"{ranks}-cards"
    return read_cluster((head + NODES).format(name=name, count=ranks // 8, **known), name)


def step(
    text: str, graph: Graph, cluster: Cluster, *, host: float = LAUNCH, again: Callable[[Graph], set[str]] | None = None
) -> float:
    """Seconds of a step of a plan, on hosts that take `host` seconds to launch a kernel; `again` names the operators of
    the step in half precision that are computed again."""
    plan = plan_of(text, graph, cluster)
    short = format_asked(plan.memory)
    if again is not None:
        names = tuple(sorted(again(in_precision(graph, plan.memory))))
        plan = replace(plan, memory=replace(plan.memory, recompute=Recompute.SELECTIVE, recomputed=names))
    costs = datasheet_costs(
        graph, cluster, sizes_of(plan, graph), precisions=(short,) if short else (), compiled=COMPILED in plan.kernels
    )
    if costs.launching:
        launches = {key: seconds * host / LAUNCH for key, seconds in costs.launching.operators.items()}
        costs = replace(costs, launching=replace(costs.launching, operators=launches, _sums={}), _sums={})
    return step_seconds(last_program(graph, plan, cluster), costs)


# Transformers in fp32 on one V100, by hand-written attention, as NeuSight timed them: no optimizer.

SIZES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert_large": (
        "BertConfig",
        {
            "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096,
            "attention_probs_dropout_prob": 0.1, "hidden_dropout_prob": 0.1,
        },
    ),
    "gpt2_large": ("GPT2Config", {"n_embd": 1280, "n_head": 20, "n_layer": 36, "n_positions": 1024}),
    "gpt3_27": ("GPT2Config", {"n_embd": 2560, "n_head": 32, "n_layer": 32, "n_positions": 2048}),
    "gpt3_xl": ("GPT2Config", {"n_embd": 3072, "n_head": 24, "n_layer": 24, "n_positions": 2048}),
    "opt_13": (
        "OPTConfig",
        {
            "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32, "ffn_dim": 8192, "dropout": 0.1,
            "vocab_size": 50272,
        },
    ),
}  # fmt: skip
UNDROPPED = {
    "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attention_probs_dropout_prob": 0.0,
    "hidden_dropout_prob": 0.0, "dropout": 0.0,
}  # fmt: skip


@cache
def transformer(model: str, length: int, training: bool) -> Graph:
    kind, known = SIZES[model]
    kept = {} if training else UNDROPPED
    config = getattr(transformers(), kind)(**(known | kept), attn_implementation="eager")
    family = "causal" if kind != "BertConfig" else "masked" if training else "classification"
    return graph_of(hugging_face(config, name=model, family=family, length=length, batch_size=8))


def neusight(truth: Path) -> Iterator[Case]:
    cluster = machine('fp32 = "14.0 TFLOP/s", fp16 = "112 TFLOP/s"', 900, more=units(80))
    for row in table(truth, "neusight_measured_latency_dev"):
        if row["model"] not in SIZES or row["option"]:
            continue
        batch, training = int(row["batch"]), row["mode"] == "train"
        graph = transformer(row["model"], int(row["seq"]), training)
        took = passes(graph, cluster, batch, forward=not training)
        stop = len(graph.operators) if training else graph.forward_length
        name = f"{row['model']} {row['mode']} {row['batch']} x {row['seq']}"
        yield Case(name, float(row["e2e_ms"]) / 1e3, took, ideal(work(graph, 0, stop, batch), cluster, "fp32"))


# Convolutional networks on one processor of a K80, fp32, as TensorFlow's benchmarks timed them in 2017.

NETWORKS: dict[str, tuple[Callable[[], Any], int]] = {
    "AlexNet": (AlexNet, 224), "VGG16": (Vgg16, 224), "ResNet-50": (ResNet50, 224), "InceptionV3": (inception3, 299),
    "ResNet-152": (partial(ResNet50, layers=(3, 8, 36, 3)), 224),
}  # fmt: skip


@cache
def network(model: str) -> Graph:
    build, size = NETWORKS[model]
    return graph_of(on_images(model, build, size))


def tensorflow(truth: Path) -> Iterator[Case]:
    cluster = machine('fp32 = "2.91 TFLOP/s"', 240, more=units(13))
    for row in table(truth, "tf_cnn_benchmarks_2017_dev"):
        if row["gpus"] != "1" or row["data"] != "synthetic":
            continue
        graph = of_minibatch(network(row["model"]), int(row["batch_per_gpu"]))
        every = work(graph, 0, len(graph.operators), graph.global_batch)
        name = f"{row['model']} x {row['batch_per_gpu']} {row['hardware'][:14]}"
        yield Case(
            name, float(row["derived_step_time_s"]), step("single", graph, cluster), ideal(every, cluster, "fp32")
        )


# GPT on A100s and V100s, all computed again, as vTrain and Megatron-LM's authors timed Megatron-LM. That program has
# fused kernels around its products, which compiled segments are nearest to, and a host that goes through modules and
# autograd in Python for each of them, which no rank of ours does.

HOST = 48e-6  # seconds a kernel; fitted on vTrain's rows of 16 layers (`--fit`)


def megatron_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float = 1.0,
    dropout: float = 0.0, **_: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Scores scaled, masked and normalised by one kernel that reads and writes half precision, then dropout."""
    later = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).triu(1)
    scores = (query @ key.transpose(2, 3) * scaling).masked_fill(later, -10000.0)
    weights = F.dropout(scores.softmax(-1), dropout, module.training)
    return (weights @ value).transpose(1, 2).contiguous(), None


@cache
def gpt(layers: int, width: int = 1024, heads: int = 16, length: int = 1024) -> Graph:
    """With that program's attention, one kernel for GELU, and dropout a part of the kernel that adds to the stream."""
    transformers().AttentionInterface.register("megatron", megatron_attention)
    config = transformers().GPT2Config(
        n_embd=width, n_head=heads, n_layer=layers, n_positions=length, vocab_size=51200, resid_pdrop=0.0,
        embd_pdrop=0.0, activation_function="gelu_pytorch_tanh", attn_implementation="megatron",
    )  # fmt: skip
    name = f"gpt-{layers}-{width}"
    return graph_of(hugging_face(config, name=name, family="causal", length=length, batch_size=8))


def megatron_case(
    name: str, measured: float, graph: Graph, cluster: Cluster, data: int, pipe: int = 1, microbatches: int = 1
) -> Case:
    kept = f"microbatches={microbatches},bucket_bytes=1073741824,recompute=full,precision=fp16,segments=compiled"
    text = f"one_f_one_b(stages={pipe},data={data},{kept})" if pipe > 1 else f"ddp({kept})"
    stops = len(graph.operators), graph.forward_length
    every = sum(work(graph, 0, stop, graph.global_batch) for stop in stops) / (data * pipe)
    return Case(name, measured, step(text, graph, cluster, host=HOST), ideal(every, cluster, "fp16"))


def vtrain(truth: Path, layers: int = 24) -> Iterator[Case]:
    for row in table(truth, "vtrain_single_node_dev"):
        if row["tp"] != "1" or int(row["layers"]) != layers:
            continue
        data, pipe, m = int(row["dp"]), int(row["pp"]), int(float(row["num_microbatches"]))
        graph = of_minibatch(gpt(layers, int(row["hidden"]), int(row["heads"])), int(row["global_batch"]))
        cluster = machine(A100, 1555, more=units(108, 400), link=300, count=data * pipe)
        name = f"{row['layers']} layers, pp {pipe} dp {data}, {m} x {row['micro_batch']}"
        yield megatron_case(name, float(row["iter_time_s"]), graph, cluster, data, pipe, m)


def megatron(truth: Path) -> Iterator[Case]:
    """The rows without tensor parallelism, which no plan of ours can say yet."""
    for row in table(truth, "megatron_2020_tp_dp_scaling") + table(truth, "megatron_sc21_table1"):
        if row["tp"] != "1" or row.get("pp", "1") != "1":
            continue
        ranks, volta, first = int(row["gpus"]), "V100" in row.get("hardware", ""), "case" in row
        graph = gpt(int(row["layers"]), int(row["hidden"]), int(row["heads"]), int(row["seq"]))
        if volta:
            cluster = nodes(V100, 900, more=units(80, 300), near=150, far=200, ranks=ranks)
        else:
            cluster = nodes(A100, 1555 if first else 2039, more=units(108, 400), near=300, far=200, ranks=ranks)
        name = f"{row['params_B']}B on {ranks} {'V100' if volta else 'A100'}"
        measured = float(row["iter_time_s" if first else "derived_iter_time_s"])
        yield megatron_case(name, measured, of_minibatch(graph, int(row["global_batch"])), cluster, ranks)


# Llama 3 8B in bf16 with divided weights, as torchtitan timed it: a block's weights are gathered at once, gradients are
# summed in fp32, and of a block all is computed again but every other product, attention and what leaves it.


def torchtitan(truth: Path) -> Iterator[Case]:
    for row in table(truth, "torchtitan_llama_dev"):
        alone = row["tp"] == row["cp"] == row["pp"] == "1"
        if row["precision"] != "bf16" or not alone:
            continue
        ranks, batch, hopper = int(row["gpus"]), int(row["global_batch"]), row["hardware"].startswith("H100")
        if hopper:
            cluster = nodes(H100, 2400, more=units(132, 500), near=450, far=400, ranks=ranks)
        else:
            cluster = nodes(A100, 2039, more=units(108, 400), near=300, far=200, ranks=ranks)
        graph = of_minibatch(graph_of_llama(), batch)
        compiled = ",segments=compiled" if row["torch_compile"] == "1" else ""
        text = f"zero3(precision=bf16,sums=fp32,bucket_bytes=436207616{compiled})"
        every = work(graph, 0, len(graph.operators), batch) / ranks
        name = f"{row['date']} {ranks} x {row['local_batch']}, {row['activation_ckpt']}{compiled}"
        took = step(text, graph, cluster, again=again)
        yield Case(name, float(row["derived_step_time_s"]), took, ideal(every, cluster, "bf16"))


@cache
def graph_of_llama() -> Graph:
    return graph_of("llama3-8b")


# Products and batches of products in fp32, 400 drawn of each kind, as NeuSight timed them. What it calls N is the depth
# and K the columns, and a time has a launch of that host in it, the least of all of its kind.

CARDS = {
    "v100": ("Tesla V100-PCIE-32GB", 14.0, 900, 80), "a100": ("NVIDIA A100-PCIE-40GB", 19.5, 1555, 108),
    "p100": ("Tesla P100-PCIE-16GB", 9.3, 732, 56), "t4": ("Tesla T4", 8.1, 320, 40), "p4": ("Tesla P4", 5.5, 192, 20),
}  # fmt: skip


SUSTAINED = {"t4": '\nsustained = { fp32 = "3.2 TFLOP/s" }'}  # of this very table's products of 1e11 FLOPs and more


def products(card: str, truth: Path) -> Iterator[Case]:
    name, peak, bandwidth, many = CARDS[card]
    cluster = machine(f'fp32 = "{peak} TFLOP/s"', bandwidth, more=units(many) + SUSTAINED.get(card, ""))
    rows = [row for row in table(truth, "neusight_gemm_conv_fp32") if row["device"] == name]
    for kind in ("linear", "bmm"):
        some = [row for row in rows if row["op"] == kind]
        launch = min(float(row["latency_ms"]) for row in some) / 1e3 - KERNEL
        for row in Random(0).sample(some, 400):
            b, m, k, n = (int(row[side]) for side in "BMNK")
            product, device = Contraction(1.0, b, m, n, k), cluster.devices[0]
            moved = streaming(device, 4 * b * (m * k + k * n + m * n))
            took = max(multiplying(device, product, "float32", 4), moved) + KERNEL + launch
            seconds = float(row["latency_ms"]) / 1e3
            if seconds > 2 * launch:
                yield Case(f"{kind} {b} x {m} x {k} x {n}", seconds, took, ideal(product.flops, cluster, "fp32"))


def convolutions(card: str, truth: Path) -> Iterator[Case]:
    """3 x 3, without TF32, also where there is that: 800 of each card, those that take more than twice the launch."""
    name, peak, bandwidth, many = CARDS[card]
    device = machine(f'fp32 = "{peak} TFLOP/s"', bandwidth, more=units(many) + SUSTAINED.get(card, "")).devices[0]
    rows = [row for row in table(truth, "neusight_gemm_conv_fp32") if row["op"] == "conv"]
    some = [row for row in rows if row["device"] == name.replace("-PCIE-40GB", " 80GB PCIe")]
    launch = min(float(row["latency_ms"]) for row in some) / 1e3 - KERNEL
    for row in Random(0).sample(some, 800):
        b, i, o, y, pad = (int(row[column]) for column in ("B", "c_in", "c_out", "input_hw", "pad"))
        made, seconds = y + 2 * pad - 2, float(row["latency_ms"]) / 1e3
        product = Contraction(1.0, 1, b * made * made, o, 9 * i)
        direct = multiplying(device, product, "float32", 4, convolution=True)
        moved = streaming(device, 4 * (b * (i * y * y + o * made * made) + 9 * i * o))
        took = max(min(direct, filtering(device, b, i, o, made, made)), moved) + KERNEL + launch
        if seconds > 2 * launch:
            yield Case(f"{b} x {i} x {y} x {y} to {o}", seconds, took, product.flops / (peak * 1e12))


V100 = 'fp32 = "15.7 TFLOP/s", fp16 = "125 TFLOP/s"'
A100 = 'fp32 = "19.5 TFLOP/s", tf32 = "156 TFLOP/s", fp16 = "312 TFLOP/s", bf16 = "312 TFLOP/s"'
H100 = 'fp32 = "67 TFLOP/s", tf32 = "494.5 TFLOP/s", fp16 = "989 TFLOP/s", bf16 = "989 TFLOP/s"'
TABLES: dict[str, Callable[[Path], Iterator[Case]]] = {
    **{f"products-{card}": partial(products, card) for card in CARDS},
    **{f"convolutions-{card}": partial(convolutions, card) for card in CARDS},
    "neusight": neusight, "tensorflow": tensorflow, "vtrain": vtrain, "megatron": megatron, "torchtitan": torchtitan,
}  # fmt: skip


def units(count: int, watts: int = 0) -> str:
    return f"multiprocessors = {count}" + (f'\npower = "{watts} W"' if watts else "")


def table(truth: Path, name: str) -> list[Row]:
    with (truth / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def ideal(work: float, cluster: Cluster, dtype: str) -> float:
    return work / dict(cluster.devices[0].flops)[dtype]


def said(errors: list[float]) -> str:
    """Errors ln(predicted / measured) as mean, 90th percentile, largest, and bias."""
    sizes = sorted(map(abs, errors))
    tenth = sizes[min(int(0.9 * len(sizes)), len(sizes) - 1)]
    return f"mean {mean(sizes):.1%}, p90 {tenth:.1%}, max {sizes[-1]:.1%}, bias {mean(errors):+.1%}"


def report(name: str, cases: list[Case], *, rows: bool) -> None:
    """Print a table's errors, with a line for each row if asked, and the null model's."""
    for each in cases if rows else ():
        error = log(each.predicted / each.measured)
        print(f"  {each.name}: {each.predicted * 1e3:.1f} ms, measured {each.measured * 1e3:.1f}, {error:+.3f}")
    share = median(case.ideal / case.measured for case in cases)
    print(f"{name}, {len(cases)} rows: {said([log(c.predicted / c.measured) for c in cases])}")
    print(f"  null, {share:.1%} of peak: {said([log(c.ideal / share / c.measured) for c in cases])}", flush=True)


def fit(truth: Path) -> None:
    global HOST
    for HOST in (LAUNCH, 30e-6, 36e-6, 42e-6, 48e-6, 54e-6):
        cases = vtrain(truth, layers=16)
        print(f"HOST {HOST * 1e6:.0f} us: {said([log(c.predicted / c.measured) for c in cases])}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--truth", type=Path, default=Path(__file__).parents[3] / "shared" / "truth")
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--rows", action="store_true", help="a line for each row")
    parser.add_argument("--fit", action="store_true", help="HOST again, on vTrain's rows of 16 layers")
    given = parser.parse_args()
    if not given.truth.is_dir():
        print(f"{given.truth} is not here; give --truth FOLDER")
        return
    if given.fit:
        fit(given.truth)
        return
    for name in given.tables.split(","):
        report(name, list(TABLES[name](given.truth)), rows=given.rows)


if __name__ == "__main__":
    main()
