"""Who trains bytes-gpt to a loss first, from 10 Mbit/s to 10 Gbit/s: predicted, and measured by moving the lab's rate.

    run.py measure      steps predicted over all rates, measured at some of them
    run.py draw         the map as --figure, and what crosses where
        [--plans "ddp;pipe_sgd;..."] [--cluster lab-4x1g] [--rates 10M..10G] [--moved 30M..10G/6]
        [--steps-to-loss steps.toml] [--out map.jsonl] [--figure map.svg]

How many steps each plan takes to the loss is what `partita compare --write-steps` has found (README). Every run is a
line of JSON in --out; what stands there is not run again, so that all can be done in pieces.
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
from partita.lab.rehearsal import Rehearsal
from partita.lowering.lower import last_program
from partita.report.map import Line, map_svg, turns
from partita.searches.learners import Learners, learners_of
from partita.searches.steps_file import check_steps
from partita.searches.steps_of_plans import StepsOfPlans
from partita.searches.sweep import Curve, crossings, lowest, read_sweep
from partita.units import show_bandwidth, show_seconds

TASK = "bytes-gpt"
PLANS = (
    "ddp", "single", "ps_sync", "pipe_sgd", "ddp(codec=fp16)", "ddp(codec=q8)", "ddp(codec=topk)", "pipe_sgd(codec=q8)",
    "local_sgd(period=8)", "diloco(period=50)",
)  # fmt: skip
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


def learned(steps: Path, plans: Sequence[str], name: str) -> tuple[Learners, dict[str, float]]:
    """What a file says of steps to the loss, and plan -> how many it takes, of those that arrive: all exact ones take
    as many."""
    cluster, graph = api.cluster_of(name), api.graph_of(TASK)
    known = check_steps(steps, "time-to-loss")
    if not isinstance(known, StepsOfPlans):
        raise SystemExit(f"{steps} holds steps by minibatch; give what compare --write-steps has written")
    found = learners_of(known, graph, cluster, "any", lambda text: api.plan_of(text, graph, cluster))
    needs = {}
    for text in plans:
        plan = api.plan_of(text, graph, cluster)
        exact = last_program(graph, plan, cluster).semantics == "exact"
        if exact or plan in found.plans:
            needs[text] = found.steps * (1.0 if exact else found.needs[plan.name])
    return found, needs


def draw(findings: Findings, found: Learners, needs: dict[str, float], figure: Path) -> None:
    print(f"\nsteps to a training loss of {found.target:.3f}:")
    print("; ".join([*(f"{plan} {steps:g}" for plan, steps in needs.items()), *map(": ".join, found.refused)]))
    lines = []
    for place, (plan, steps) in enumerate(needs.items()):
        said, was = (curve(findings.of(what, plan), steps) for what in ("said", "was"))
        lines += [Line(plan, said, was, place)] if said else []
    print(f"predicted: {turns(lines)}")
    ran = lowest({line.plan: line.measured for line in lines})
    print("measured: " + ", ".join(f"{plan} from {show_bandwidth(rate)}" for rate, plan in ran))
    figure.write_text(map_svg(lines, f"{TASK}: seconds to a training loss of {found.target:.3f}"), encoding="utf-8")
    crossed(lines)


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
    parser.add_argument("what", choices=("measure", "draw"), nargs="?", help="both, where not given")
    parser.add_argument("--plans", default=";".join(PLANS))
    parser.add_argument("--cluster", default="lab-4x1g")
    parser.add_argument("--rates", default="10M..10G")
    parser.add_argument("--moved", default="30M..10G/6")
    parser.add_argument("--steps-to-loss", type=Path, default=Path("steps.toml"))
    parser.add_argument("--out", type=Path, default=Path("map.jsonl"))
    parser.add_argument("--figure", type=Path, default=Path("map.svg"))
    given = parser.parse_args()
    findings, plans = Findings(given.out), given.plans.split(";")
    rates, moved = (read_sweep(f"bandwidth={text}") for text in (given.rates, given.moved))
    verbs: dict[str, Callable[[], None]] = {
        "measure": lambda: measure(findings, plans, given.cluster, rates, moved),
        "draw": lambda: draw(findings, *learned(given.steps_to_loss, plans, given.cluster), given.figure),
    }
    for what in [given.what] if given.what else verbs:
        verbs[what]()


if __name__ == "__main__":
    main()
