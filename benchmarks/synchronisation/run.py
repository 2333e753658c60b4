"""Held-out loss after equal samples, by method of synchronisation (MX-03), with an equal tuning budget each.

    run.py TASK [--cluster lab-4x1g] [--steps 250] [--seeds 10] [--plans "ddp;ssp"] [--out runs.jsonl]

Each method first runs at every rate of the task with a seed of its own, keeps the rate with the least held-out loss,
then runs at it with each seed; devices are real processes, so that asynchronous plans are as stale as they would be.
Every run is a line of JSON in --out, and is not done again. Printed are the median, a bootstrap interval of the mean
paired difference to the first plan, and in how many seeds it was better.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from statistics import mean, median
from typing import Any

from tasks import RATES, name_of

from partita import api
from partita.errors import PartitaError
from partita.lab.rehearsal import Rehearsal

HERE = Path(__file__).resolve().parent
PLANS = (
    "ddp", "pipe_sgd", "ssp(staleness=3)", "ps_async", "dc_asgd", "easgd", "local_sgd(period=4)", "diloco(period=25)",
    "d_psgd", "gossip",
)  # fmt: skip
TUNING, DRAWS = 1000, 10_000  # the seed that rates are chosen with; bootstrap draws


def measure(task: str, rate: float, seed: int, plan: str, cluster: str, steps: int) -> dict[str, Any]:
    """One run: its held-out loss after `steps` steps (not a number where it diverged), (seconds, loss) on its way."""
    spec, found = f"{HERE / 'tasks.py'}:{name_of(task, rate)}", api.cluster_of(cluster)
    graph = api.graph_of(spec)
    made = api.plan_of(plan, graph, found)
    try:
        with Rehearsal(spec, graph, found, seed=seed) as crew:
            take = crew.measure(made, steps=steps)
    except PartitaError as error:
        return {"final": float("nan"), "error": str(error)}
    return {"final": take.final_loss, "curve": [(seconds, loss) for _, seconds, loss in take.loss]}


class Book:
    """The runs that are done, in a file of lines of JSON."""

    def __init__(self, place: Path) -> None:
        self.place = place
        lines = place.read_text().splitlines() if place.exists() else []
        self.found = {json.dumps(one["asked"]): one for one in map(json.loads, lines)}

    def run(self, *asked: Any) -> dict[str, Any]:
        key = json.dumps(list(asked))
        if key not in self.found:
            self.found[key] = {"asked": list(asked)} | measure(*asked)
            with self.place.open("a") as file:
                file.write(json.dumps(self.found[key]) + "\n")
            print(key, self.found[key]["final"], flush=True)
        return self.found[key]


def interval(differences: list[float]) -> tuple[float, float]:
    """Of the mean, 95 %, by bootstrap."""
    draw = random.Random(0)
    means = sorted(mean(draw.choices(differences, k=len(differences))) for _ in range(DRAWS))
    return means[DRAWS // 40], means[-DRAWS // 40]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=sorted(RATES))
    parser.add_argument("--cluster", default="lab-4x1g")
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--plans", default=";".join(PLANS))
    parser.add_argument("--out", type=Path, default=Path("runs.jsonl"))
    given = parser.parse_args()
    book, rest = Book(given.out), (given.cluster, given.steps)
    finals: dict[str, list[float]] = {}
    for plan in given.plans.split(";"):
        tried = {rate: book.run(given.task, rate, TUNING, plan, *rest)["final"] for rate in RATES[given.task]}
        best = min((rate for rate in tried if tried[rate] == tried[rate]), key=tried.__getitem__)
        runs = [book.run(given.task, best, seed, plan, *rest) for seed in range(given.seeds)]
        finals[plan] = [run["final"] for run in runs]
        first = next(iter(finals.values()))
        apart = [mine - theirs for mine, theirs in zip(finals[plan], first, strict=True)]
        low, high = interval(apart)
        print(
            f"{plan:22s} rate {best:<8g} held-out loss {median(finals[plan]):.4f}, difference {mean(apart):+.4f} "
            f"({low:+.4f} to {high:+.4f}), better in {sum(d < 0 for d in apart)} of {len(apart)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
