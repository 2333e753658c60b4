"""The bubble of each schedule on a balanced model: by its closed form, simulated before the run, and measured.

    run.py [--cluster local:2] [--stages 2] [--steps 4] [--repeat 3]

The bubble is the part of a step in which a rank computes nothing, in the mean over all ranks. Closed forms, of p
stages, m microbatches and v chunks a rank, where forward, what backward hands on and the weights' gradient cost the
same:

gpipe, one_f_one_b   (p - 1) / (m + p - 1)      GPipe, section 3; Narayanan et al. 2021, section 2.2.1
interleaved          (p - 1) / (v m + p - 1)    Narayanan et al. 2021, section 2.2.2
zero_bubble          (p - 1) / (3 m + p - 1)    ZB-H1: (p - 1)(F + B - W) seconds, Qi et al. 2023, table 2
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from typing import Final

from partita import api
from partita.lab.rehearsal import Rehearsal
from partita.program.timeline import Timeline

HERE: Final = Path(__file__).resolve().parent
TASKS: Final = {4: "four", 8: "eight"}
TIMES: Final = {"gpipe": 1, "one_f_one_b": 1, "interleaved": 2, "zero_bubble": 3}  # m counts so often


def idle(timeline: Timeline, ranks: int) -> float:
    """The part of a round in which a rank computes nothing, in the mean over ranks and whole rounds."""
    rounds = len({span.round for span in timeline.spans})
    busy = sum(span.end - span.start for span in timeline.spans if span.lane == "compute")
    return 1 - busy / rounds / ranks / timeline.step_seconds


def show(cluster: str, stages: int, microbatches: int, steps: int, repeat: int) -> None:
    """A line for each schedule."""
    machines, task = api.cluster_of(cluster), f"{HERE / 'layers.py'}:{TASKS[microbatches]}"
    graph = api.graph_of(task)
    with Rehearsal(task, graph, machines) as rehearsal:
        texts = [f"{name}(stages={stages},microbatches={microbatches})" for name in TIMES]
        plans = [api.plan_of(text, graph, machines) for text in texts]
        costs = rehearsal.probe(plans)
        told = [idle(api.simulate(graph, plan, machines, costs=costs), stages) for plan in plans]
        found: list[list[float]] = [[] for _ in plans]
        for _ in range(repeat):
            for plan, bubbles in zip(plans, found, strict=True):
                take = rehearsal.measure(plan, steps=steps, evaluate=False)
                bubbles.append(idle(take.timeline, stages))
    for (name, times), simulated, bubbles in zip(TIMES.items(), told, found, strict=True):
        closed = (stages - 1) / (times * microbatches + stages - 1)
        line = f"{name:12s} p={stages} m={microbatches}  closed form {closed:6.1%}  simulated {simulated:6.1%}"
        print(f"{line}  measured {median(bubbles):6.1%} ({min(bubbles):.1%} to {max(bubbles):.1%})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cluster", default="local:2")
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    for microbatches in TASKS:
        show(given.cluster, given.stages, microbatches, given.steps, given.repeat)


if __name__ == "__main__":
    main()
