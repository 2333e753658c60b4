"""Prediction before the run over tasks x clusters x plans, beside three naive baselines.

    run.py [--tasks digits-cnn,bytes-gpt,...] [--clusters lab-4x1g,...] [--steps 12] [--repeat 3]

One line of JSON a case as it is done, then |ln(predicted / measured)|: mean, 90th percentile and bias of each
predictor.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from statistics import mean, quantiles

from partita import api

PLANS = ("single", "ddp", "ps_sync", "pipe_sgd", "local_sgd")


@dataclass(frozen=True)
class Case:
    """One measured run with what was predicted before it."""

    name: str
    measured: float
    predicted: dict[str, float]


def cases(task: str, cluster: str, steps: int, repeat: int) -> list[Case]:
    found = api.compare(task, PLANS, api.cluster_of(cluster), steps=steps, repeat=repeat)
    return [
        Case(
            f"{task} {cluster} {row.plan}",
            row.measured.step_seconds,
            {"partita": row.predicted.step_seconds, **row.naive},
        )
        for row in found.rows
        if row.predicted and row.measured
    ]


def with_nearest(found: list[Case]) -> list[Case]:
    """Adds the measured step of the case whose naive guesses are the most alike: a nearest measured neighbour."""
    whole = []
    for case in found:
        others = [other for other in found if other is not case]
        near = min(others, key=lambda other: distance(case, other))
        whole.append(Case(case.name, case.measured, case.predicted | {"nearest": near.measured}))
    return whole


def distance(one: Case, other: Case) -> float:
    return sum(abs(math.log(one.predicted[key] / other.predicted[key])) for key in ("sum", "max"))


def summary(found: list[Case]) -> None:
    for name in found[0].predicted:
        errors = [math.log(case.predicted[name] / case.measured) for case in found]
        sizes = [abs(error) for error in errors]
        tail = quantiles(sizes, n=10)[-1]
        print(f"{name:10s} mean {mean(sizes):6.1%}  p90 {tail:6.1%}  bias {mean(errors):+6.1%}  n={len(sizes)}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", default="digits-cnn,bytes-gpt,vgg16-32,llama-5m")
    parser.add_argument("--clusters", default="lab-4x1g,lab-4x10g,lab-4-slow1,lab-5x1g")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    found: list[Case] = []
    for task in given.tasks.split(","):
        for cluster in given.clusters.split(","):
            for case in cases(task, cluster, given.steps, given.repeat):
                found.append(case)
                print(json.dumps({"case": case.name, "measured": case.measured, **case.predicted}), flush=True)
    summary(with_nearest(found))


if __name__ == "__main__":
    main()
