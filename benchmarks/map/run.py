"""Who trains bytes-gpt to a loss first, from 10 Mbit/s to 10 Gbit/s: predicted, and measured by moving the lab's rate.

    run.py learn        how many steps each method takes to the loss, in four processes without slow links
    run.py measure      steps predicted over all rates, measured at some of them
    run.py draw         the map as --figure, and what crosses where, of what the two have found
        [--plans "ddp;pipe_sgd;..."] [--cluster lab-4x1g] [--rates 10M..10G] [--moved 30M..10G/6] [--steps 300]
        [--out map.jsonl] [--figure map.svg]

Every run is a line of JSON in --out; what stands there is not run again, so that all can be done in pieces.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

from partita import api
from partita.checkpoints.checkpoint import SavePolicy
from partita.lab.rehearsal import Rehearsal
from partita.lowering.lower import last_program
from partita.report.map import Line, map_svg, turns
from partita.searches.steps_of_plans import WINDOW, reached
from partita.searches.sweep import Curve, crossings, lowest, read_sweep
from partita.units import show_bandwidth, show_seconds

TASK = "bytes-gpt"
# Plan -> that whose loss it shares, step by step: exact ones train alike.
PLANS = {
    "ddp": "ddp", "single": "ddp", "ps_sync": "ddp", "pipe_sgd": "pipe_sgd", "ddp(codec=fp16)": "ddp(codec=fp16)",
    "ddp(codec=q8)": "ddp(codec=q8)", "ddp(codec=topk)": "ddp(codec=topk)",
    "pipe_sgd(codec=q8)": "pipe_sgd(codec=q8)", "local_sgd(period=8)": "local_sgd(period=8)",
    "diloco(period=50)": "diloco(period=50)",
}  # fmt: skip
EXACT = "ddp"
SLOW = 16.0  # seconds of a run that is not waited for


class Findings:
    """What is known, by what was asked: (what, ...) -> a value; a file of lines of JSON."""

    def __init__(self, place: Path) -> None:
        self.place = place
        lines = place.read_text().splitlines() if place.exists() else []
        self.found: dict[tuple[Any, ...], Any] = {tuple(key): value for key, value in map(json.loads, lines)}

    def put(self, value: Any, *key: Any) -> None:
        self.found[key] = value
        with self.place.open("a") as file:
            file.write(f"{json.dumps([key, value])}\n")

    def of(self, *key: Any) -> dict[Any, Any]:
        """What follows `key` -> value, where one thing does."""
        return {k[-1]: value for k, value in self.found.items() if k[:-1] == key}


def learn(findings: Findings, plans: Sequence[str], steps: int) -> None:
    """The training loss of each step, of one seed."""
    cluster, graph = api.cluster_of("local:4"), api.graph_of(TASK)
    missing = [plan for plan in dict.fromkeys(PLANS[plan] for plan in plans) if plan not in findings.of("loss")]
    with Rehearsal(TASK, graph, cluster) as rehearsal:
        for plan in missing:
            take = rehearsal.train(api.plan_of(plan, graph, cluster), steps=steps, keep=SavePolicy(""))
            findings.put([loss for _, _, loss in take.loss], "loss", plan)
            print(f"{plan}: held-out loss {take.final_loss:.4f} after {steps} steps", flush=True)


def measure(
    findings: Findings, plans: Sequence[str], name: str, rates: Sequence[float], moved: Sequence[float]
) -> None:
    """Steps of each plan: predicted over `rates`, run at those `moved` rates at which that does not take long."""
    cluster, graph = api.cluster_of(name), api.graph_of(TASK)
    made = {plan: api.plan_of(plan, graph, cluster) for plan in plans}
    with Rehearsal(TASK, graph, cluster) as rehearsal:
        costs = rehearsal.probe(list(made.values()))
        for plan in plans:
            for point in api.sweep(made[plan], costs, sorted({*rates, *moved})).points:
                findings.put(point.seconds, "said", plan, point.bandwidth)
        for rate in moved:
            for rank in range(cluster.size):
                rehearsal.group.lab.set_bandwidth(rank, rate)
            for plan in plans:
                period = max(last_program(graph, made[plan], cluster).steps, 4)
                if rate in findings.of("was", plan) or 2 * period * findings.of("said", plan)[rate] > SLOW:
                    continue
                take = rehearsal.measure(made[plan], steps=4, evaluate=False)
                findings.put(take.timeline.step_seconds, "was", plan, rate)
                print(f"{show_bandwidth(rate)} {plan}: {show_seconds(take.timeline.step_seconds)}", flush=True)


def steps_to(losses: Sequence[float], target: float) -> float:
    """Steps after which the training loss, a mean over some, is down to a target; endless where it never is."""
    found = reached([[(step, 0.0, loss) for step, loss in enumerate(losses, 1)]], target)
    return found[0] if found else math.inf


def draw(findings: Findings, figure: Path) -> None:
    losses = findings.of("loss")
    target = fmean(losses[EXACT][: len(losses[EXACT]) * 2 // 3][-WINDOW:])
    needs = {plan: steps_to(losses[PLANS[plan]], target) for plan in PLANS if PLANS[plan] in losses}
    print(f"\nsteps to a training loss of {target:.3f}, the mean of {WINDOW} steps:")
    print("; ".join(f"{plan} {steps:g}" for plan, steps in needs.items()))
    found = []
    for place, plan in enumerate(plan for plan in needs if math.isfinite(needs[plan])):
        said, was = (curve(findings.of(what, plan), needs[plan]) for what in ("said", "was"))
        found.append(Line(plan, said, was, place))
    print(f"predicted: {turns(found)}")
    ran = lowest({line.plan: line.measured for line in found})
    print("measured: " + ", ".join(f"{plan} from {show_bandwidth(rate)}" for rate, plan in ran))
    figure.write_text(map_svg(found, f"{TASK}: seconds to a training loss of {target:.3f}"), encoding="utf-8")
    crossed(found)


def curve(steps: dict[float, float], need: float) -> Curve:
    return tuple((rate, need * seconds) for rate, seconds in sorted(steps.items()))


def crossed(lines: Sequence[Line]) -> None:
    """Where any two lines cross, predicted and measured, both between the rates that were moved to."""
    print("\n| two plans | the second ahead from, predicted | measured | ln p/m |\n|---|---|---|---|")
    errors = []
    for one, other in combinations(lines, 2):
        was = crossings(one.measured, other.measured)
        said = [at for at, _ in crossings(one.predicted, other.predicted)]
        for at, second in was:
            pair = (one.plan, other.plan) if second else (other.plan, one.plan)
            near = min(said, key=lambda x, at=at: abs(math.log(x / at)), default=0.0)  # type: ignore[misc]
            errors += [abs(math.log(near / at))] if near else []
            cells = show_bandwidth(near) if near else "nowhere", show_bandwidth(at)
            print(f"| {' / '.join(pair)} | {' | '.join(cells)} | {f'{math.log(near / at):+.2f}' if near else ''} |")
        for at in said if not was else ():
            print(f"| {one.plan} / {other.plan} | {show_bandwidth(at)} | not seen | |")
    print(f"\n{len(errors)} crossings both predicted and measured, mean |ln p/m| {fmean(errors or [math.nan]):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("learn", "measure", "draw"), nargs="?", help="all three, where not given")
    parser.add_argument("--plans", default=";".join(PLANS))
    parser.add_argument("--cluster", default="lab-4x1g")
    parser.add_argument("--rates", default="10M..10G")
    parser.add_argument("--moved", default="30M..10G/6")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path("map.jsonl"))
    parser.add_argument("--figure", type=Path, default=Path("map.svg"))
    given = parser.parse_args()
    findings, plans = Findings(given.out), given.plans.split(";")
    rates, moved = (read_sweep(f"bandwidth={text}") for text in (given.rates, given.moved))
    verbs: dict[str, Callable[[], None]] = {
        "learn": lambda: learn(findings, plans, given.steps),
        "measure": lambda: measure(findings, plans, given.cluster, rates, moved),
        "draw": lambda: draw(findings, given.figure),
    }
    for what in [given.what] if given.what else verbs:
        verbs[what]()


if __name__ == "__main__":
    main()
