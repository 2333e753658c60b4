"""Steps to a held-out loss by minibatch (LB-06), the loss after equally many samples (MX-01), and what they decide.

    run.py [--task tasks.py:perceptron] [--target 0.25] [--batches 1,2,..,512] [--seeds 9] [--first 0.7]
           [--samples 3200] [--cluster lab-4x1g] [--out steps.toml]

For each minibatch, the largest first: the fewest steps over a ladder of rates, a factor of sqrt(2) apart, around the
rate that was best before; a rate's steps are the median over the seeds. The same for the least loss after --samples
samples. All by plain serial training in this process, on one thread. Then the law K(B) = floor (1 + critical / B)
through the points, and which minibatch is soonest at the loss on a cluster, by data sheets. --out is for
`partita plan TASK --cluster C --objective time-to-loss --steps-to-loss steps.toml`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from rich.console import Console

from partita import api
from partita.oracles.target import least_loss, least_steps
from partita.report.table import minibatch_table
from partita.searches.steps_file import write_steps
from partita.searches.steps_to_loss import MeasuredMinibatch, StepsToLoss, slope
from partita.task import Task

HERE = Path(__file__).resolve().parent
MOST = 100_000  # steps that a run may take


def measured(task: Task, batches: list[int], given: argparse.Namespace) -> StepsToLoss:
    """A point for each minibatch, told as it is there."""
    seeds, points, rate, other = range(given.seeds), list[MeasuredMinibatch](), given.first, given.first
    print(f"{'B':>5} {'steps':>8} {'rate':>8} {'loss':>8} {'its rate':>8}   steps by rate", flush=True)
    for batch in reversed(batches):
        begun = time.perf_counter()
        found = least_steps(task, batch, given.target, seeds=seeds, first=rate, most=MOST)
        after = least_loss(task, batch, given.samples, seeds=seeds, first=other)
        rate, other = found.rate, after.rate
        points.append(MeasuredMinibatch(batch, found.value, found.rate, after.value))
        tried = " ".join(f"{at:.3g}:{steps:g}" for at, steps in found.tried)
        took = f"({time.perf_counter() - begun:.0f} s)"
        print(f"{batch:5} {found.value:8g} {rate:8.3g} {after.value:8.4f} {other:8.3g}   {tried} {took}", flush=True)
    return StepsToLoss(given.target, tuple(reversed(points)), task.name, given.samples)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", default=f"{HERE / 'tasks.py'}:perceptron")
    parser.add_argument("--target", type=float, default=0.25)
    parser.add_argument("--batches", default=",".join(str(2**k) for k in range(10)))
    parser.add_argument("--seeds", type=int, default=9)
    parser.add_argument("--first", type=float, default=0.7)
    parser.add_argument("--samples", type=int, default=3200)
    parser.add_argument("--cluster", default="lab-4x1g")
    parser.add_argument("--out", type=Path, default=Path("steps.toml"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    task, batches = api.load(given.task), sorted(map(int, given.batches.split(",")))
    steps = measured(task, batches, given)
    given.out.write_text(write_steps(steps), encoding="utf-8")
    law = steps.law
    low, high = slope(*steps.points[:2]), slope(*steps.points[-2:])
    print(
        f"K(B) = {law.floor:.1f} (1 + {law.critical:.1f} / B), R^2 {law.r2:.4f}; slope {low:.3f} from {batches[0]} to "
        f"{batches[1]}, {high:.3f} from {batches[-2]} to {batches[-1]}"
    )
    found = api.search(
        api.graph_of(task), api.cluster_of(given.cluster), source="datasheet", objective="time-to-loss",
        steps_to_loss=steps,
    )  # fmt: skip
    Console(width=160).print(minibatch_table(found))
    print(found.explanation)


if __name__ == "__main__":
    main()
