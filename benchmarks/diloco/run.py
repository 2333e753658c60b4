"""DiLoCo beside exact all-reduce on bytes-gpt: samples a second on slow links, in turns, and what was predicted.

    run.py [--batch 4] [--knobs period=100] [--cluster lab-4x100m] [--repeat 7]

What it costs in held-out loss is `benchmarks/synchronisation`'s to say: `run.py .../diloco/tasks.py:batch_4`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median

from partita import api
from partita.lab.rehearsal import Rehearsal
from partita.lowering.lower import last_program
from partita.simulator.simulate import simulate

HERE = Path(__file__).resolve().parent


def task_of(batch: int) -> str:
    return f"{HERE / 'tasks.py'}:batch_{batch}"


def speed(batch: int, knobs: str, name: str, repeat: int) -> None:
    task, cluster = task_of(batch), api.cluster_of(name)
    graph = api.graph_of(task)
    plans = {text: api.plan_of(text, graph, cluster) for text in ("ddp", f"diloco({knobs})")}
    with Rehearsal(task, graph, cluster) as rehearsal:
        costs = rehearsal.probe(list(plans.values()))
        said = {text: simulate(last_program(graph, p, cluster), costs).step_seconds for text, p in plans.items()}
        was: dict[str, list[float]] = {text: [] for text in plans}
        for _ in range(repeat):
            for text, plan in plans.items():
                was[text].append(rehearsal.measure(plan, steps=12, evaluate=False).timeline.step_seconds)
    for text in plans:
        low, middle, high = (batch / pick(was[text]) for pick in (max, median, min))
        print(f"{text}: {middle:.1f} samples a second ({low:.1f} to {high:.1f}), predicted {batch / said[text]:.1f}")
    first, last = plans
    print(
        f"diloco over ddp on {name}, {batch} samples a step: {median(was[first]) / median(was[last]):.1f}, "
        f"predicted {said[first] / said[last]:.1f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--knobs", default="period=100")
    parser.add_argument("--cluster", default="lab-4x100m")
    parser.add_argument("--repeat", type=int, default=7)
    given = parser.parse_args()
    speed(given.batch, given.knobs, given.cluster, given.repeat)


if __name__ == "__main__":
    main()
