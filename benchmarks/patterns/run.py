"""How much of real models the operator patterns cover: operators, FLOPs, and how many of them divide by sample.

python benchmarks/patterns/run.py [NAME ...]
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import transformers

from partita.graph.flops import flops
from partita.graph.graph import Graph
from partita.graph.pattern import Role
from partita.graph.patterns import pattern_of
from partita.graph.repeats import find_repeats
from partita.graph.tensor import Affine
from partita.task import Task
from partita.tracing.capture import capture
from partita.zoo.hugging_face import hugging_face
from partita.zoo.tasks import built_in

TINY: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
TOKENS: dict[str, Any] = {"vocab_size": 256, "bos_token_id": 0, "eos_token_id": 1}
CONFIGS: dict[str, Callable[[], object]] = {
    "gpt2-tiny": lambda: transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, n_positions=64, **TOKENS),
    "llama-tiny": lambda: transformers.LlamaConfig(num_key_value_heads=2, **TINY, **TOKENS),
    "bert-tiny": lambda: transformers.BertConfig(vocab_size=256, **TINY),
    "vit-tiny": lambda: transformers.ViTConfig(image_size=32, patch_size=8, **TINY),
    "t5-tiny": lambda: transformers.T5Config(vocab_size=256, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4),
    "mixtral-tiny": lambda: transformers.MixtralConfig(num_key_value_heads=2, num_local_experts=4, **TINY, **TOKENS),
}
ZOO = (
    "digits-cnn", "convnet-8m", "bytes-gpt", "lstm", "gnmt", "alexnet", "vgg16", "vgg16-32", "resnet50", "inception3",
    "unet", "gpt2-small", "gpt2-xl", "bert-large", "llama-5m", "transformer-moe",
)  # fmt: skip

COLUMNS = (
    "model", "rung", "operators", "with a pattern", "FLOPs with one", "sample divides", "GFLOP a step", "repeated",
    "capture s",
)  # fmt: skip


def from_config(name: str) -> Task:
    return hugging_face(CONFIGS[name](), name=name, length=33)


def row(name: str, graph: Graph, seconds: float) -> tuple[str, Counter[str], Counter[str]]:
    """One line of the table, the targets without a pattern, and those whose samples do not divide."""
    missing, fixed = Counter[str](), Counter[str]()
    counted, covered = 0.0, 0.0
    for operator in graph.operators:
        pattern, work = pattern_of(operator, graph), flops(operator, graph, graph.batch)
        counted += work
        if pattern is None:
            missing[operator.target] += 1
            continue
        covered += work
        follows = any(isinstance(d, Affine) for tensor in operator.outputs if tensor for d in tensor.shape)
        if follows and not any(label.role is Role.SAMPLE for label in pattern.splittable()):
            fixed[operator.target] += 1
    total = len(graph.operators)
    repeated = sum(run.length * run.count for run in find_repeats(graph)) / total
    cells = (
        name, graph.rung, str(total), f"{1 - missing.total() / total:.2%}", f"{covered / max(counted, 1):.2%}",
        f"{1 - (missing + fixed).total() / total:.2%}", f"{counted / 1e9:.3g}", f"{repeated:.0%}", f"{seconds:.1f}",
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |", missing, fixed


def main(names: list[str]) -> None:
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    missing, fixed = Counter[str](), Counter[str]()
    makers = {name: partial(built_in, name) for name in ZOO} | {name: partial(from_config, name) for name in CONFIGS}
    for name in names or makers:
        task = makers[name]()
        assert task is not None
        begun = time.perf_counter()
        graph = capture(task)
        line, lacks, stays = row(name, graph, time.perf_counter() - begun)
        print(line, flush=True)
        missing, fixed = missing + lacks, fixed + stays
    print("\nwithout a pattern:", dict(missing.most_common()) or "none")
    print("samples do not divide:", dict(fixed.most_common()) or "none")


if __name__ == "__main__":
    main(sys.argv[1:])
