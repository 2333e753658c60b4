"""Every codec's step beside its own bound: its core's work (computing, coding, TCP), or its bytes over the bandwidth.

    bounds.py [--task convnet-8m] [--cluster lab-4x1g] [--plan pipe_sgd] [--repeat 7] [--steps 6]

The bound is worked out before the runs, from probes of operators, codecs and links: of each rank the core-seconds of a
step over its cores, and the bytes of a step over the bandwidth of its port; the largest of all. Runs take turns. Prints
a line of JSON a turn, then a table of medians with the spread, the quickest codec first.
"""

from __future__ import annotations

import argparse
import json
from statistics import median

from partita import api
from partita.cluster.cluster import Cluster
from partita.lab.rehearsal import Rehearsal
from partita.lowering.lower import last_program
from partita.program.timeline import Timeline
from partita.simulator.simulate import simulate
from partita.units import Seconds
from partita.wire.codec import SPECS


def bound_of(predicted: Timeline, cluster: Cluster) -> tuple[Seconds, str]:
    """The seconds that a step takes at least, and what binds."""
    limits = [(spent / device.cores, "core") for spent, device in zip(predicted.cores, cluster.devices, strict=False)]
    for rank, ports in enumerate(cluster.climbs):
        for way in (0, 1):
            size = sum(entry[2] for entry in predicted.traffic if entry[way] == rank)
            limits.append((size / ports[-1].link.bandwidth, "link"))
    return max(limits)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", default="convnet-8m")
    parser.add_argument("--cluster", default="lab-4x1g")
    parser.add_argument("--plan", default="pipe_sgd")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--steps", type=int, default=6)
    given = parser.parse_args()
    graph, cluster = api.graph_of(given.task), api.cluster_of(given.cluster)
    texts = [given.plan, *(f"{given.plan}(codec={name})" for name in SPECS)]
    plans = {text: api.plan_of(text, graph, cluster) for text in texts}
    seconds: dict[str, list[Seconds]] = {text: [] for text in texts}
    with Rehearsal(given.task, graph, cluster) as rehearsal:
        costs = rehearsal.probe(list(plans.values()))
        said = {text: simulate(last_program(graph, plan, cluster), costs) for text, plan in plans.items()}
        for _ in range(given.repeat):
            for text, plan in plans.items():
                run = rehearsal.measure(plan, steps=given.steps, evaluate=False)
                seconds[text].append(run.timeline.step_seconds)
            print(json.dumps({text: spent[-1] for text, spent in seconds.items()}), flush=True)
    heads = ["plan", "step, ms (smallest to largest)", "bound, ms", "which is its", "step / bound", "predicted, ms"]
    print(f"\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for text in sorted(texts, key=lambda text: median(seconds[text])):
        bound, what = bound_of(said[text], cluster)
        low, middle, high = (pick(seconds[text]) * 1e3 for pick in (min, median, max))
        step, ratio = f"{middle:.1f} ({low:.1f} to {high:.1f})", middle / bound / 1e3
        predicted = said[text].step_seconds * 1e3
        print(f"| {text} | {step} | {bound * 1e3:.1f} | {what} | {ratio:.2f} | {predicted:.1f} |")


if __name__ == "__main__":
    main()
