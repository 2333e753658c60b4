"""Prediction before the run over tasks x clusters x plans, beside three naive baselines.

    run.py [--tasks digits-cnn,bytes-gpt,...] [--clusters lab-4x1g,...] [--plans "ddp;ps_sync"] [--steps 12]
           [--repeat 3] [--turns 1] [--out cases.jsonl] [--figure figure.svg]
    run.py --plans loose       the plans of LOOSE, of every family that relaxes something

With --turns a contest is held so often, each with new workers and costs measured anew, and a case is the median of its
predictions beside the median of its runs: the neighbours of a shared host slow some seconds of either.

One line of JSON a case as it is done (what already stands in --out is not run again), then |ln(predicted / measured)|
of the step: mean, 90th percentile and bias of each predictor, and of each class of plans; of live memory; staleness;
and whether wire payload is exact. The figure has a panel a predictor, coloured by class, and needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median, quantiles

from partita import api
from partita.program.ledger import compared

PLANS = ("single", "ddp", "ps_sync", "pipe_sgd", "local_sgd")
LOOSE = (
    "ps_async", "downpour(push=4,fetch=4)", "ssp", "softsync", "dynsgd", "dc_asgd", "backup_workers", "d_psgd",
    "ad_psgd", "gossip", "easgd", "eamsgd", "admm", "parallel_sgd", "diloco(period=10)", "ddp(codec=fp16)",
    "pipe_sgd(codec=q8)", "ddp(codec=onebit)", "pipe_sgd(codec=dgc)", "ddp(codec=topk)", "ps_sync(codec=terngrad)",
    "ddp(collective=ring)", "ddp(collective=doubling)", "p3", "bytescheduler", "horovod", "sfb", "poseidon",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One measured run with what was predicted before it: seconds of a step, bytes that the fullest rank holds
    (`memory`: predicted, measured), whether the bytes on the wire are those that were predicted, and, where a ledger
    says, the mean staleness (predicted, measured) and half the sum of differences between the two distributions. Of
    several turns, medians; `turns` has what Partita predicted and what was measured in each."""

    task: str
    cluster: str
    plan: str
    measured: float
    predicted: dict[str, float]
    memory: tuple[int, int]
    wire: bool
    semantics: str = ""
    staleness: tuple[float, float, float] | None = None
    turns: tuple[tuple[float, float], ...] = ()


def cases(task: str, cluster: str, plans: Sequence[str], steps: int, repeat: int, turns: int) -> list[Case]:
    """A case a plan, over so many contests."""
    rounds: dict[str, list[Case]] = {}
    for _ in range(turns):
        with tempfile.TemporaryDirectory() as cache:
            os.environ["XDG_CACHE_HOME"] = cache
            for case in contest(task, cluster, plans, steps, repeat):
                rounds.setdefault(case.plan, []).append(case)
    return [middle(found) for found in rounds.values()]


def middle(found: list[Case]) -> Case:
    """Medians of one case's turns."""
    predicted = {name: median(case.predicted[name] for case in found) for name in found[0].predicted}
    turns = tuple((case.predicted["partita"], case.measured) for case in found)
    wire = all(case.wire for case in found)
    return replace(
        found[0], measured=median(case.measured for case in found), predicted=predicted, turns=turns, wire=wire
    )


def contest(task: str, cluster: str, plans: Sequence[str], steps: int, repeat: int) -> list[Case]:
    found = api.compare(task, plans, api.cluster_of(cluster), steps=steps, repeat=repeat, evaluate=False)
    for row in found.rows:
        if row.error:
            print(f"{row.plan}: {row.error}", flush=True)
    return [
        Case(
            task,
            cluster,
            row.plan,
            row.measured.step_seconds,
            {"partita": row.predicted.step_seconds, **row.naive},
            (max(row.predicted.memory), max(row.measured.memory)),
            row.predicted.wire_sent == row.measured.wire_sent,
            row.semantics,
            compared(row.predicted.ledger, row.measured.ledger),
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
    for semantics in sorted({case.semantics for case in found}):
        errors = [math.log(c.predicted["partita"] / c.measured) for c in found if c.semantics == semantics]
        print(f"{semantics:10s} {spread(errors)}")
    print(f"{'memory':10s} {spread(math.log(case.memory[0] / case.memory[1]) for case in found)}")
    for case in found:
        if case.staleness:
            said, was, apart = case.staleness
            print(f"staleness {case.task} {case.cluster} {case.plan}: {said:.2f}, was {was:.2f}; {apart:.2f} apart")
    print(f"wire payload exact in {sum(case.wire for case in found)} of {len(found)}")


def spread(errors: Iterable[float]) -> str:
    errors = list(errors)
    sizes = [abs(error) for error in errors]
    tail = quantiles(sizes, n=10)[-1] if len(sizes) > 1 else sizes[0]
    return f"mean {mean(sizes):6.1%}  p90 {tail:6.1%}  bias {mean(errors):+6.1%}  n={len(sizes)}"


def figure(found: list[Case], place: Path) -> None:
    """A panel a predictor: predicted against measured step, both logarithmic, coloured by class."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    names, classes = list(found[0].predicted), sorted({case.semantics for case in found})
    whole, panels = pyplot.subplots(1, len(names), figsize=(4 * len(names), 4), sharex=True, sharey=True)
    for name, panel in zip(names, panels, strict=True):
        for semantics in classes:
            mine = [case for case in found if case.semantics == semantics]
            panel.loglog(
                [c.measured * 1e3 for c in mine], [c.predicted[name] * 1e3 for c in mine], "o", label=semantics
            )
        ends = [pick(c.measured for c in found) * 1e3 for pick in (min, max)]
        panel.loglog(ends, ends, "k-", lw=0.5)
        panel.set(title=name, xlabel="measured step [ms]")
    panels[0].set(ylabel="predicted step [ms]")
    panels[0].legend()
    whole.tight_layout()
    whole.savefig(place)


def read(place: Path | None) -> list[Case]:
    lines = place.read_text().splitlines() if place and place.exists() else []
    return [Case(**json.loads(line)) for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", default="digits-cnn,bytes-gpt,vgg16-32,llama-5m")
    parser.add_argument("--clusters", default="lab-4x1g,lab-4x10g,lab-4-slow1,lab-5x1g")
    parser.add_argument("--plans", default=";".join(PLANS))
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args()
    found = read(given.out)
    plans = LOOSE if given.plans == "loose" else tuple(given.plans.split(";"))
    done = {(case.task, case.cluster, case.plan) for case in found}
    for task in given.tasks.split(","):
        for cluster in given.clusters.split(","):
            missing = [plan for plan in plans if (task, cluster, plan) not in done]
            order = (given.steps, given.repeat, given.turns)
            fresh = cases(task, cluster, missing, *order) if missing else []
            found += fresh
            lines = [json.dumps(asdict(case)) for case in fresh]
            print("\n".join(lines), end="\n" * bool(lines), flush=True)
            if given.out and lines:
                with given.out.open("a") as file:
                    file.write("\n".join(lines) + "\n")
    summary(with_nearest(found))
    if given.figure:
        figure(with_nearest(found), given.figure)


if __name__ == "__main__":
    main()
