"""Thirty cases of devices whose memory is a limit that kills: how often does what is said to fit die?

    run.py [--cases 30] [--skip 0]

Plans of a wide perceptron on two devices of the lab, on memory from 0.8 to 1.4 times what is predicted. A worker is
limited to its device's memory and what it takes besides tensors, measured once with a tiny model. First the live bytes
of each plan beside what its allocator did; then a line a case; then false fits (said to fit, killed; the goal is none)
and missed ones (said not to fit, alive).
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from statistics import mean

from partita import api
from partita.cluster.cluster import Cluster
from partita.graph.graph import Graph
from partita.lab.limits import beside, survives
from partita.lab.rehearsal import Rehearsal
from partita.searches.fit import fit_of
from partita.units import show_bytes

PLANS = (
    "ddp", "zero1", "zero2(bucket_bytes=9000000)", "zero3(bucket_bytes=9000000)", "gpipe(stages=2,microbatches=4)",
    "one_f_one_b(stages=2,microbatches=4)",
)  # fmt: skip
FACTORS = (1.05, 0.95, 1.15, 0.8, 1.4)  # of the predicted peak


def pair(memory: int) -> Cluster:
    cluster = api.cluster_of("lab-4x1g")
    device = replace(cluster.devices[0], memory=memory)
    return replace(cluster, root=replace(cluster.root, members=(device,) * 2, ports=cluster.root.ports[:2]))


def errors(spec: str, graph: Graph) -> str:
    """By how much predicted live bytes of the fullest rank are off what its allocator saw, over all plans."""
    off = []
    with Rehearsal(spec, graph, pair(0)) as rehearsal:
        for text in PLANS:
            plan = api.plan_of(text, graph, pair(0))
            predicted = max(fit_of(plan, graph, pair(10**10)).used)
            off.append(predicted / max(watch.peak for watch in rehearsal.memory(plan)) - 1)
            print(f"{text}: {show_bytes(predicted)} predicted, {off[-1]:+.1%}", flush=True)
    return f"live bytes: mean error {mean(map(abs, off)):.1%}, at most {max(map(abs, off)):.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=len(PLANS) * len(FACTORS))
    parser.add_argument("--skip", type=int, default=0)
    given = parser.parse_args()
    tasks = Path(__file__).with_name("tasks.py")
    small, spec = f"{tasks}:narrow", f"{tasks}:wide"
    control, graph = api.graph_of(small), api.graph_of(spec)
    besides = beside(small, control, pair(0), api.plan_of("ddp", control, pair(0)))
    print(f"a worker takes {show_bytes(besides)} besides tensors", flush=True)
    if not given.skip:
        print(errors(spec, graph), flush=True)
    false = missed = 0
    for factor, text in islice(product(FACTORS, PLANS), given.skip, given.skip + given.cases):
        plan = api.plan_of(text, graph, pair(0))
        there = pair(int(factor * max(fit_of(plan, graph, pair(10**9)).used)))
        fits, alive = fit_of(plan, graph, there).fits, survives(spec, graph, there, plan, besides)
        false, missed = false + (fits and not alive), missed + (alive and not fits)
        memory = show_bytes(there.devices[0].memory)
        print(f"{text} on {memory}: {'fits' if fits else 'does not fit'}, {'alive' if alive else 'killed'}", flush=True)
    print(f"{given.cases} cases, {false} false fits, {missed} missed ones")


if __name__ == "__main__":
    main()
