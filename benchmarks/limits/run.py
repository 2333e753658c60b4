"""Thirty cases of devices whose memory is a limit that kills: how often does what is said to fit die?

    run.py [--cases 30]

Plans of a wide perceptron on two devices of the lab, on memory from 0.8 to 1.4 times what is predicted. A worker is
limited to its device's memory and what it takes besides tensors, measured once with a tiny model. A line a case, then
false fits (said to fit, killed; the goal is none) and missed ones (said not to fit, alive).
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import islice, product
from pathlib import Path

from partita import api
from partita.cluster.cluster import Cluster
from partita.lab.limits import beside, survives
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=len(PLANS) * len(FACTORS))
    cases = parser.parse_args().cases
    tasks = Path(__file__).with_name("tasks.py")
    small, spec = f"{tasks}:narrow", f"{tasks}:wide"
    control, graph = api.graph_of(small), api.graph_of(spec)
    besides = beside(small, control, pair(0), api.plan_of("ddp", control, pair(0)))
    print(f"a worker takes {show_bytes(besides)} besides tensors", flush=True)
    false = missed = 0
    for factor, text in islice(product(FACTORS, PLANS), cases):
        plan = api.plan_of(text, graph, pair(0))
        there = pair(int(factor * max(fit_of(plan, graph, pair(10**9)).used)))
        fits, alive = fit_of(plan, graph, there).fits, survives(spec, graph, there, plan, besides)
        false, missed = false + (fits and not alive), missed + (alive and not fits)
        memory = show_bytes(there.devices[0].memory)
        print(f"{text} on {memory}: {'fits' if fits else 'does not fit'}, {'alive' if alive else 'killed'}", flush=True)
    print(f"{cases} cases, {false} false fits, {missed} missed ones")


if __name__ == "__main__":
    main()
