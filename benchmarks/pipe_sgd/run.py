"""Pipe-SGD's table (MX-05; Li et al., NeurIPS 2018) on devices that are not here, beside a tuned overlapped DDP.

    run.py [--tasks mlp,convnet,alexnet,resnet18]

Seconds a step by the simulator on data-sheet costs: a synchronous server with a node of its own (PS-Sync), one
all-reduce after backward (D-Sync), both of Pipe-SGD's codecs in every hop (T truncation, Q eight bits), DDP with the
best of some bucket sizes, and the bound max(c, m) of computing and of the plain ring's bytes.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from partita import api
from partita.cluster.cluster import Cluster, Group
from partita.graph.graph import Graph
from partita.searches.explaining import widened

HERE = Path(__file__).resolve().parent
ONE = "bucket_bytes=1073741824,first_bucket_bytes=1073741824,order=fifo,collective=ring"
PIPE = "collective=ring"
CELLS = {
    "D-Sync": f"ddp({ONE})",
    "D-Sync+T": f"ddp({ONE},codec=truncate)",
    "D-Sync+Q": f"ddp({ONE},codec=q8)",
    "Pipe": f"pipe_sgd({PIPE})",
    "Pipe+T": f"pipe_sgd({PIPE},codec=truncate)",
    "Pipe+Q": f"pipe_sgd({PIPE},codec=q8)",
}
TUNED = [f"ddp(bucket_bytes={size},first_bucket_bytes={size // 4})" for size in (2**20, 2**22, 2**24, 2**26)]


def first(cluster: Cluster, count: int) -> Cluster:
    """Its first `count` devices."""
    root = cluster.root
    return replace(cluster, root=Group(root.name, root.members[:count], root.ports[:count]))


def seconds(graph: Graph, plan: str, cluster: Cluster) -> float:
    return api.simulate(graph, plan, cluster).step_seconds


def row(name: str, cluster: Cluster) -> dict[str, float]:
    """Seconds of each cell, of the tuned DDP, of computing (c) and of the plain ring's bytes (m)."""
    graph, four = api.graph_of(f"{HERE / 'tasks.py'}:{name}"), first(cluster, 4)
    found = {"PS-Sync": seconds(graph, "ps_sync(bucket_bytes=1073741824)", cluster)}
    found |= {cell: seconds(graph, plan, four) for cell, plan in CELLS.items()}
    found["DDP"] = min(seconds(graph, plan, four) for plan in TUNED)
    gradient = 4 * graph.parameter_elements
    bandwidth = four.climbs[0][0].link.bandwidth
    found["m"] = 2 * 3 / 4 * gradient / bandwidth
    found["c"] = seconds(graph, "pipe_sgd", widened(four, 1e6))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", default="mlp,convnet,alexnet,resnet18")
    given = parser.parse_args()
    cluster = api.cluster_of(str(HERE / "titan-xp.toml"))
    for name in given.tasks.split(","):
        found = row(name, cluster)
        bound = max(found["c"], found["m"])
        print(f"{name}: " + ", ".join(f"{cell} {value * 1e3:.2f} ms" for cell, value in found.items()))
        best = min(found["Pipe"], found["Pipe+T"], found["Pipe+Q"])
        print(
            f"  best Pipe over PS-Sync {found['PS-Sync'] / best:.2f}, over D-Sync {found['D-Sync'] / best:.2f}, over "
            f"tuned DDP {found['DDP'] / best:.2f}; plain Pipe over its bound {found['Pipe'] / bound:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
