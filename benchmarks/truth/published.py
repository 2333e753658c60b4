"""Published steps that no constant has met, kept here with where they stand, against data sheets alone.

    published.py [--tables bert,paddle,turing,ampere] [--rows]

As `steps.py` prints its own tables: predicted from the captured step, the plan and the data sheet, and beside it one
efficiency that is fitted on the very table.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from benchmarks.truth.steps import Case, ideal, machine, report, step, units, work
from partita.api import graph_of
from partita.cluster.cluster import Cluster
from partita.cluster.text import read_cluster
from partita.graph.batch import of_minibatch
from partita.graph.graph import Graph
from partita.zoo.convolutional import AlexNet
from partita.zoo.hugging_face import hugging_face, transformers
from partita.zoo.inception import inception3
from partita.zoo.resnet import ResNet50
from partita.zoo.tasks import on_images

# BERT-large as a classifier, 512 tokens, four samples a step on one V100 of 16 GB: seconds of 128 steps
# (huggingface/transformers, docs/source/en/perf_train_gpu_one.mdx of 2022). Its fp16 is autocast, ours short weights.
BERT: Final = {
    "single": 57.82, "ddp(microbatches=4)": 66.03, "ddp(microbatches=4,recompute=full)": 85.47,
    "ddp(precision=fp16)": 27.46, "ddp(microbatches=4,recompute=full,precision=fp16)": 50.76,
}  # fmt: skip

# Images a second in fp32 on two sockets of Xeon Gold 6148, MKL-DNN 0.11, 64, 128 and 256 at a time
# (PaddlePaddle/Paddle, benchmark/IntelOptimizedPaddle.md). 40 cores x 64 FLOP a tick x 2.2 GHz, the clock at which all
# of them compute with AVX-512, and twice six channels of DDR4-2666.
PADDLE: Final = {
    "VGG-19": (28.46, 29.83, 30.44), "ResNet-50": (81.69, 82.35, 84.08), "GoogLeNet": (250.46, 264.83, 269.50),
}  # fmt: skip

# Images a second in fp32 on an RTX 2080, TensorFlow 1.11, cuDNN 7.3, 32 and 64 at a time
# (ggg17226/rtx2080-dl-benchmark, benchmark-tf.md); those of its networks whose shapes are known.
TURING: Final = {
    "VGG-11": (240.60, 260.31), "VGG-13": (148.33, 145.10), "VGG-16": (126.27, 128.15), "VGG-19": (108.83, 111.23),
    "GoogLeNet": (468.09, 515.9), "AlexNet": (1546.52, 2103.99), "Inception-v3": (133.04, 146.95),
    "ResNet-18": (411.48, 459.15), "ResNet-34": (263.17, 300.79), "ResNet-50": (178.01, 192.91),
    "ResNet-101": (108.99,),
}  # fmt: skip

# Images a second in fp16 (tf_cnn_benchmarks, TensorFlow 1.15 of NGC 20.12) on 1, 2, 4 and 8 RTX 3090 without peers or
# bridges, two EPYC 7352, 64 and 256 at a time on each; how it sums variables is not said
# (server-gear.com/blog/post/rtx3090-x8-exhaustive-tf-cnn-benchmarks).
AMPERE: Final = {
    ("ResNet-50", 64): (1026.83, 1828.21, 2798.55, 4039.44), ("ResNet-50", 256): (1181.90, 2283.06, 4266.43, 7362.66),
    ("Inception-v3", 64): (709.40, 1304.37, 2247.00, 3549.19),
    ("Inception-v3", 256): (806.46, 1573.15, 2979.08, 5598.28),
    ("VGG-16", 64): (419.83, 589.37, 703.38, 634.67), ("VGG-16", 256): (455.41, 821.34, 1303.34, 1695.73),
}  # fmt: skip

BOX = """
schema = 1
[device.card]
like = "{card}"
[network]
link = {{ bandwidth = "10 Gbit/s", latency = "15 us" }}
[[network.members]]
count = 1
link = {{ bandwidth = "{link} GB/s", latency = "{way} us" }}
members = [{{ device = "card", count = {count} }}]
"""
XEON = """
schema = 1
[device.xeon]
backend = "cpu"
flops = { fp32 = "5.6 TFLOP/s" }
memory_bandwidth = "256 GB/s"
[network]
link = { bandwidth = "10 GB/s", latency = "2 us" }
members = [{ device = "xeon", count = 1 }]
"""


class Vgg(nn.Module):
    """So many convolutions at each of five sizes (Simonyan and Zisserman, 2015)."""

    def __init__(self, depths: tuple[int, ...]) -> None:
        super().__init__()
        layers, inputs = list[nn.Module](), 3
        for depth, width in zip(depths, (64, 128, 256, 512, 512), strict=True):
            for _ in range(depth):
                layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU()]
                inputs = width
            layers.append(nn.MaxPool2d(2))
        wide = [nn.Linear(25088, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout()]
        self.layers = nn.Sequential(*layers, nn.Flatten(), *wide, nn.Linear(4096, 1000))

    def forward(self, x: Tensor) -> Any:
        return self.layers(x)


class Basic(nn.Module):
    """Two convolutions beside a way past them (He et al., 2016)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        first, second = nn.Conv2d(inputs, width, 3, stride, 1, bias=False), nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.way = nn.Sequential(first, nn.BatchNorm2d(width), nn.ReLU(), second, nn.BatchNorm2d(width))
        past = [nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width)] if inputs != width else []
        self.past = nn.Sequential(*past)

    def forward(self, x: Tensor) -> Any:
        return torch.relu(self.way(x) + self.past(x))


def basic_resnet(depths: tuple[int, ...]) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inputs = 64
    for depth, width in zip(depths, (64, 128, 256, 512), strict=True):
        for k in range(depth):
            layers.append(Basic(inputs, width, 2 if k == 0 and width > 64 else 1))
            inputs = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


class Mixed(nn.Module):
    """Four ways side by side (Szegedy et al., 2015)."""

    def __init__(self, inputs: int, one: int, three: tuple[int, int], five: tuple[int, int], pooled: int) -> None:
        super().__init__()

        def layer(inputs: int, width: int, size: int) -> list[nn.Module]:
            return [nn.Conv2d(inputs, width, size, padding=size // 2), nn.ReLU()]

        ways = [layer(inputs, one, 1), layer(inputs, three[0], 1) + layer(*three, 3)]
        ways += [layer(inputs, five[0], 1) + layer(*five, 5), [nn.MaxPool2d(3, 1, 1), *layer(inputs, pooled, 1)]]
        self.ways = nn.ModuleList(nn.Sequential(*way) for way in ways)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([way(x) for way in self.ways], 1)


def googlenet() -> nn.Module:
    """Without its two further classifiers and its local norms."""
    smaller = partial(nn.MaxPool2d, 3, 2, 1)
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU(), smaller(), nn.Conv2d(64, 64, 1), nn.ReLU(),
        nn.Conv2d(64, 192, 3, padding=1), nn.ReLU(), smaller(),
        Mixed(192, 64, (96, 128), (16, 32), 32), Mixed(256, 128, (128, 192), (32, 96), 64), smaller(),
        Mixed(480, 192, (96, 208), (16, 48), 64), Mixed(512, 160, (112, 224), (24, 64), 64),
        Mixed(512, 128, (128, 256), (24, 64), 64), Mixed(512, 112, (144, 288), (32, 64), 64),
        Mixed(528, 256, (160, 320), (32, 128), 128), smaller(),
        Mixed(832, 256, (160, 320), (32, 128), 128), Mixed(832, 384, (192, 384), (48, 128), 128),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.4), nn.Linear(1024, 1000),
    )  # fmt: skip


NETWORKS: Final[dict[str, Callable[[], nn.Module]]] = {
    "VGG-11": partial(Vgg, (1, 1, 2, 2, 2)), "VGG-13": partial(Vgg, (2, 2, 2, 2, 2)),
    "VGG-16": partial(Vgg, (2, 2, 3, 3, 3)), "VGG-19": partial(Vgg, (2, 2, 4, 4, 4)),
    "ResNet-18": partial(basic_resnet, (2, 2, 2, 2)), "ResNet-34": partial(basic_resnet, (3, 4, 6, 3)),
    "ResNet-50": ResNet50, "ResNet-101": partial(ResNet50, layers=(3, 4, 23, 3)), "GoogLeNet": googlenet,
    "AlexNet": AlexNet, "Inception-v3": inception3,
}  # fmt: skip


@cache
def network(name: str) -> Graph:
    return graph_of(on_images(name, NETWORKS[name], 299 if name == "Inception-v3" else 224))


def case(name: str, measured: float, text: str, graph: Graph, cluster: Cluster) -> Case:
    every = work(graph, 0, len(graph.operators), graph.global_batch) / cluster.size
    dtype = "fp16" if "fp16" in text else "fp32"
    return Case(name, measured, step(text, graph, cluster), ideal(every, cluster, dtype))


def bert() -> Iterator[Case]:
    config = transformers().BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
        attn_implementation="eager",
    )  # fmt: skip
    graph = graph_of(hugging_face(config, name="bert-large", family="classification", length=512, batch_size=4))
    cluster = machine('fp32 = "15.7 TFLOP/s", fp16 = "125 TFLOP/s"', 900, more=units(80, 300))
    for text, seconds in BERT.items():
        yield case(text, seconds / 128, text, of_minibatch(graph, 4), cluster)


def images(table: Mapping[str, tuple[float, ...]], first: int, cluster: Cluster) -> Iterator[Case]:
    for name, rates in table.items():
        for k, rate in enumerate(rates):
            batch = first << k
            graph = of_minibatch(network(name), batch)
            yield case(f"{name} x {batch}", batch / rate, "single", graph, cluster)


def box(card: str, count: int, link: float, way: float) -> Cluster:
    return read_cluster(BOX.format(card=card, count=count, link=link, way=way), f"{count}-{card}")


def ampere() -> Iterator[Case]:
    for (name, each), rates in AMPERE.items():
        for k, rate in enumerate(rates):
            count = 1 << k
            graph, text = of_minibatch(network(name), count * each), f"{'ddp' if k else 'single'}(precision=fp16)"
            cluster = box("rtx3090", count, 31, 5)
            yield case(f"{name} {count} x {each}", count * each / rate, text, graph, cluster)


TABLES: Final[dict[str, Callable[[], Iterator[Case]]]] = {
    "bert": bert, "paddle": lambda: images(PADDLE, 64, read_cluster(XEON, "xeon")),
    "turing": lambda: images(TURING, 32, machine('fp32 = "10.07 TFLOP/s"', 448, more=units(46, 215))),
    "ampere": ampere,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--rows", action="store_true", help="a line for each row")
    given = parser.parse_args()
    for name in given.tables.split(","):
        report(name, list(TABLES[name]()), rows=given.rows)


if __name__ == "__main__":
    main()
