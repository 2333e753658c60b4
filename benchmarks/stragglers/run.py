"""What plans that do not wait for a slow device gain over ddp: measured, predicted, and the most that they could.

    run.py [--cases slow1,larger,slow5,stalls] [--steps 12] [--repeat 3] [--unpredicted]

slow1   lab-4-slow1, one device at half the others' speed          slow5   slow5.toml, one at a fifth
larger  the same with four times the samples a step (larger.py)
stalls  lab-4x1g, where one step in ten of each rank takes five times as long (stalling.py); not predicted

Samples count when they are applied. The bound is what the devices compute together over what they do at the pace of
the slowest; for backup_workers, which drops the slowest one's samples, over the pace of the slowest of the others. With
stalls it is what a step takes whose slowest rank is waited for, over the mean of all.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Final

from benchmarks.stragglers.stalling import TIMES, stalls
from partita import api
from partita.cluster.cluster import Cluster
from partita.lab.rehearsal import Rehearsal

HERE: Final = Path(__file__).resolve().parent
SERVED: Final = "own=false,servers=0,bucket_bytes=524288"
BACKUP: Final = f"backup_workers(backup=1,{SERVED})"
SSP: Final = f"ssp(staleness=3,{SERVED})"
ASYNC: Final = f"ps_async({SERVED})"


@dataclass(frozen=True, slots=True)
class Case:
    """A cluster, a task, and plans with what each should gain over ddp (0: nothing is asked), `times` as many steps."""

    cluster: str
    task: str
    plans: tuple[tuple[str, float], ...]
    times: int = 1


CASES: Final = {
    "slow1": Case("lab-4-slow1", "bytes-gpt", (("ad_psgd", 1.5), (BACKUP, 1.3), (SSP, 0.0), (ASYNC, 0.0))),
    "larger": Case("lab-4-slow1", f"{HERE / 'larger.py'}:larger", (("ad_psgd", 1.5), (BACKUP, 1.3))),
    "slow5": Case(str(HERE / "slow5.toml"), "bytes-gpt", (("ad_psgd", 3.0), (BACKUP, 2.5))),
    "stalls": Case("lab-4x1g", f"{HERE / 'stalling.py'}:stalling", ((SSP, 1.2),), times=3),
}


def bound(plan: str, cluster: Cluster, stalling: int) -> float:
    """The most that a plan can gain over waiting for the slowest device, in so many steps with stalls."""
    if stalling:
        steps = [[TIMES if stalls(rank, step) else 1 for rank in range(cluster.size)] for step in range(stalling)]
        return fmean(map(max, steps)) / fmean(map(fmean, steps))
    paces = sorted(device.pace for device in cluster.devices)
    if plan.startswith("backup"):
        return paces[1] * (len(paces) - 1) / (paces[0] * len(paces))
    return sum(paces) / (paces[0] * len(paces))


def show(name: str, case: Case, steps: int, repeat: int, predicted: bool) -> None:
    """Runs the case's plans in turn, ddp first, and prints a line for each."""
    cluster, graph = api.cluster_of(case.cluster), api.graph_of(case.task)
    plans = [api.plan_of(text, graph, cluster) for text in ("ddp", *(text for text, _ in case.plans))]
    goals, steps = dict(case.plans), steps * case.times
    stalling = steps if case.task.endswith(":stalling") else 0
    with Rehearsal(case.task, graph, cluster) as rehearsal:
        costs = rehearsal.probe(plans) if predicted and not stalling else None
        told = {p.name: api.simulate(graph, p, cluster, costs=costs).step_seconds for p in plans if costs}
        found: dict[str, list[float]] = {}
        for _ in range(repeat):
            for plan in plans:
                take = rehearsal.measure(plan, steps=steps, evaluate=False)
                found.setdefault(plan.name, []).append(take.timeline.step_seconds)
    waiting = median(found["ddp"])
    for text, seconds in found.items():
        line = f"{name:7s} {text:66s} {median(seconds) * 1e3:7.1f} ms ({min(seconds) * 1e3:.1f} to "
        line += f"{max(seconds) * 1e3:.1f}), gain {waiting / median(seconds):.2f}"
        line += f", predicted {told[text] * 1e3:.1f} ms, {told['ddp'] / told[text]:.2f}" if told else ""
        goal = f", goal {goals[text]}" if goals.get(text) else ""
        print(f"{line}{goal}, bound {bound(text, cluster, stalling):.2f}" if text != "ddp" else line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--unpredicted", action="store_true")
    given = parser.parse_args()
    for name in given.cases.split(","):
        show(name, CASES[name], given.steps, given.repeat, not given.unpredicted)


if __name__ == "__main__":
    main()
