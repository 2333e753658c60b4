"""Held-out loss after equal samples, by method of synchronisation (MX-03), with an equal tuning budget each.

    run.py [TASK] [--cluster lab-4x1g] [--steps 250] [--seeds 10] [--plans "ddp;ssp(staleness=3)"] [--out runs.jsonl]

Each method first runs in each of its six settings with a seed of its own, keeps the one with the least held-out loss,
then runs in it with each seed; devices are real processes, so that asynchronous plans are as stale as they would be.
All runs of a seed take turns on the same workers. Every run is a line of JSON in --out, and is not done again. Printed
are the mean, the gap to the first plan with the bootstrap interval of its mean over pairs, and how often it was better.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from partita import api
from partita.checkpoints.checkpoint import SavePolicy
from partita.errors import PartitaError
from partita.lab.rehearsal import Rehearsal

PLANS = (
    "ddp", "pipe_sgd", "ssp(staleness=3)", "ps_async", "dc_asgd", "easgd", "local_sgd(period=4)", "diloco(period=25)",
    "d_psgd", "gossip",
)  # fmt: skip
RATES = (0.125, 0.25, 0.5, 1, 2, 4)  # times the task's own
OUTER = ((0.9, 0.5), (0.9, 1), (0.9, 2), (0.5, 1), (0.5, 2), (0.5, 4))  # diloco: outer momentum, times the task's rate
TUNING, DRAWS = 1000, 10_000  # the seed that settings are chosen with; bootstrap draws


def settings(plan: str) -> list[str]:
    """Six calls of a recipe: rates for most, rates and outer momenta for DiLoCo."""
    name, _, knobs = plan.removesuffix(")").partition("(")
    if name == "diloco":
        tried = [f"momentum={momentum},rate_scale={rate}" for momentum, rate in OUTER]
    else:
        tried = [f"rate_scale={rate}" for rate in RATES]
    return [f"{name}({','.join(filter(None, (knobs, more)))})" for more in tried]


class Runs:
    """The runs that are done, (task, cluster, steps, seed, plan) -> loss and curve, in a file of lines of JSON."""

    def __init__(self, place: Path, task: str, cluster: str, steps: int) -> None:
        self.place, self.task, self.cluster, self.steps = place, task, cluster, steps
        lines = place.read_text().splitlines() if place.exists() else []
        self.found = {tuple(key): run["final"] for key, run in map(json.loads, lines)}

    def losses(self, seed: int, plans: Iterable[str]) -> dict[str, float]:
        """Held-out loss of each plan; runs what is missing."""
        keys = {plan: (self.task, self.cluster, self.steps, seed, plan) for plan in plans}
        missing = [plan for plan, key in keys.items() if key not in self.found]
        for plan, run in self._runs(seed, missing) if missing else ():
            self.found[keys[plan]] = run["final"]
            with self.place.open("a") as file:
                file.write(f"{json.dumps([keys[plan], run])}\n")
            print(seed, plan, run["final"], flush=True)
        return {plan: self.found[key] for plan, key in keys.items()}

    def _runs(self, seed: int, plans: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each plan's held-out loss (not a number where it diverged) and (seconds, training loss) on its way. Workers
        that a divergence has ended are started again for the next plan."""
        graph, cluster, left = api.graph_of(self.task), api.cluster_of(self.cluster), deque(plans)
        while left:
            with Rehearsal(self.task, graph, cluster, seed=seed) as rehearsal:
                while left:
                    plan = left.popleft()
                    try:
                        take = rehearsal.train(api.plan_of(plan, graph, cluster), steps=self.steps, keep=SavePolicy(""))
                    except PartitaError as error:
                        yield plan, {"final": float("nan"), "error": str(error)}
                        break
                    curve = [(seconds, loss) for _, seconds, loss in take.loss]
                    yield plan, {"final": take.final_loss, "curve": curve}


def best(losses: dict[str, float]) -> str:
    """The plan with the least loss, of those that did not diverge."""
    return min((plan for plan in losses if losses[plan] == losses[plan]), key=losses.__getitem__)


def interval(gaps: Sequence[float]) -> tuple[float, float]:
    """Of the mean, 95 %, by bootstrap."""
    draw = random.Random(0)
    means = sorted(mean(draw.choices(gaps, k=len(gaps))) for _ in range(DRAWS))
    return means[DRAWS // 40], means[-DRAWS // 40]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("task", nargs="?", default="digits-cnn")
    parser.add_argument("--cluster", default="lab-4x1g")
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--plans", default=";".join(PLANS))
    parser.add_argument("--out", type=Path, default=Path("runs.jsonl"))
    given = parser.parse_args()
    done = Runs(given.out, given.task, given.cluster, given.steps)
    plans = given.plans.split(";")
    tuned = done.losses(TUNING, [call for plan in plans for call in settings(plan)])
    chosen = [best({call: tuned[call] for call in settings(plan)}) for plan in plans]
    runs = [done.losses(seed, chosen) for seed in range(given.seeds)]
    for call in chosen:
        gaps = [run[call] / run[chosen[0]] - 1 for run in runs]
        low, high = interval(gaps)
        print(
            f"{call:50s} held-out loss {mean(run[call] for run in runs):.4f}, gap {mean(gaps):+.1%} "
            f"({low:+.1%} to {high:+.1%}), better in {sum(gap < 0 for gap in gaps)} of {len(gaps)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
