"""Prediction before the run over tasks x clusters x plans, beside three naive baselines.

    run.py [--tasks digits-cnn,bytes-gpt,...] [--clusters lab-4x1g,...] [--steps 12] [--repeat 3] [--out cases.jsonl]

One line of JSON a case as it is done (what already stands in --out is not run again), then |ln(predicted / measured)|
of the step: mean, 90th percentile and bias of each predictor; of live memory, and whether wire payload is exact.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, quantiles

from partita import api

PLANS = ("single", "ddp", "ps_sync", "pipe_sgd", "local_sgd")


@dataclass(frozen=True)
class Case:
    """One measured run with what was predicted before it: seconds of a step, bytes that the fullest rank holds
    (`memory`: predicted, measured) and whether the bytes on the wire are those that were predicted."""

    task: str
    cluster: str
    plan: str
    measured: float
    predicted: dict[str, float]
    memory: tuple[int, int]
    wire: bool


def cases(task: str, cluster: str, steps: int, repeat: int) -> list[Case]:
    found = api.compare(task, PLANS, api.cluster_of(cluster), steps=steps, repeat=repeat)
    return [
        Case(
            task,
            cluster,
            row.plan,
            row.measured.step_seconds,
            {"partita": row.predicted.step_seconds, **row.naive},
            (max(row.predicted.memory), max(row.measured.memory)),
            row.predicted.wire_sent == row.measured.wire_sent,
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
        whole.append(replace(case, predicted=case.predicted | {"nearest": near.measured}))
    return whole


def distance(one: Case, other: Case) -> float:
    return sum(abs(math.log(one.predicted[key] / other.predicted[key])) for key in ("sum", "max"))


def summary(found: list[Case]) -> None:
    for name in found[0].predicted:
        print(f"{name:10s} {spread(math.log(case.predicted[name] / case.measured) for case in found)}")
    print(f"{'memory':10s} {spread(math.log(case.memory[0] / case.memory[1]) for case in found)}")
    print(f"wire payload exact in {sum(case.wire for case in found)} of {len(found)}")


def spread(errors: Iterable[float]) -> str:
    errors = list(errors)
    sizes = [abs(error) for error in errors]
    return f"mean {mean(sizes):6.1%}  p90 {quantiles(sizes, n=10)[-1]:6.1%}  bias {mean(errors):+6.1%}  n={len(sizes)}"


def read(place: Path | None) -> list[Case]:
    lines = place.read_text().splitlines() if place and place.exists() else []
    return [Case(**json.loads(line)) for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", default="digits-cnn,bytes-gpt,vgg16-32,llama-5m")
    parser.add_argument("--clusters", default="lab-4x1g,lab-4x10g,lab-4-slow1,lab-5x1g")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = read(given.out)
    done = {(case.task, case.cluster) for case in found}
    for task in given.tasks.split(","):
        for cluster in given.clusters.split(","):
            fresh = [] if (task, cluster) in done else cases(task, cluster, given.steps, given.repeat)
            found += fresh
            lines = [json.dumps(asdict(case)) for case in fresh]
            print("\n".join(lines), end="\n" * bool(lines), flush=True)
            if given.out and lines:
                with given.out.open("a") as file:
                    file.write("\n".join(lines) + "\n")
    summary(with_nearest(found))


if __name__ == "__main__":
    main()
