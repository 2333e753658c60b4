"""Up to which bandwidth codecs pay, and what an order of messages gains: predicted from probes, then measured by moving
the rate of the lab's links.

    run.py codecs [--tasks bytes-gpt,convnet-8m] [--codecs fp16,q8,...] [--rates 100M..10G/9]
    run.py order  [--tasks bytes-gpt,convnet-8m] [--rates 100M..10G/9]
        [--cluster lab-4x1g] [--steps 8] [--repeat 1] [--out runs.jsonl]

A codec is measured beside no codec at the rates around its predicted break-even. An order of messages, of the sizes
that are predicted to be quickest, is measured beside first come, first served where it is predicted to gain most (there
messages take about as long as what they can hide behind: the papers' condition) and on the fastest links. Every run is
a line of JSON in --out; a table is made of all that are there.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from partita import api
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.lab.rehearsal import Rehearsal
from partita.lowering.lower import last_program
from partita.searches.explaining import widened
from partita.searches.sweep import Sweep, check_links, crossings, read_sweep
from partita.simulator.simulate import step_seconds
from partita.units import show_bandwidth

CODECS = "fp16,truncate,q8,fixed,dettmers8,dorefa,qsgd,onebit,terngrad,topk,powersgd"
PLAIN = "ddp"
ORDERS = {
    "p3(own=false,servers=0": "ps_sync(own=false,servers=0,bucket_bytes=0)",
    "bytescheduler(servers=0": "ddp(bucket_bytes=SIZE,first_bucket_bytes=SIZE,order=fifo)",
}
NEAR = 3.2  # how far from the predicted break-even a codec is measured
Rates = Sequence[float]  # bytes a second


class Timings:
    """Seconds a step of (task, bytes a second, plan), as often as measured, in a file of lines of JSON."""

    def __init__(self, place: Path) -> None:
        self.place, self.found = place, dict[tuple[str, float, str], list[float]]()
        for task, rate, plan, seconds in map(json.loads, place.read_text().splitlines() if place.exists() else []):
            self.found.setdefault((task, rate, plan), []).append(seconds)

    def measure(self, rehearsal: Rehearsal, plan: str, rate: float, steps: int) -> None:
        made = api.plan_of(plan, rehearsal.graph, rehearsal.cluster)
        seconds = rehearsal.measure(made, steps=steps, evaluate=False).timeline.step_seconds
        self.found.setdefault((rehearsal.task, rate, plan), []).append(seconds)
        with self.place.open("a") as file:
            file.write(f"{json.dumps([rehearsal.task, rate, plan, seconds])}\n")

    def ratio(self, task: str, rate: float, one: str, other: str) -> float | None:
        """One plan's step over another's."""
        keys = (task, rate, one), (task, rate, other)
        return median(self.found[keys[0]]) / median(self.found[keys[1]]) if all(k in self.found for k in keys) else None


def move(rehearsal: Rehearsal, rate: float) -> None:
    """From now on every device's port has that rate, both ways."""
    for rank in range(rehearsal.cluster.size):
        rehearsal.group.lab.set_bandwidth(rank, rate)


def coded(codec: str) -> str:
    return f"ddp(codec={codec})"


def swept(plan: str, graph: Graph, costs: Costs, rates: Rates) -> Sweep:
    return api.sweep(api.plan_of(plan, graph, costs.cluster), costs, rates)


def wanted(even: float, rates: Rates) -> list[float]:
    """The rates around a predicted break-even; where there is none, a narrow one and the widest."""
    return [rate for rate in rates if 1 / NEAR <= rate / even <= NEAR] if even else [rates[len(rates) // 3], rates[-1]]


def evened(ratios: Sequence[tuple[float, float]], near: float) -> float:
    """The rate at which a ratio of steps passes 1, the one nearest to `near` (0 where there is none)."""
    found = [rate for rate, _ in crossings(tuple(ratios), tuple((rate, 1.0) for rate, _ in ratios))]
    return min(found, key=lambda rate: abs(math.log(rate / (near or rate))), default=0.0)


def shown(even: float, ratios: Iterable[float]) -> str:
    """The rate up to which a codec pays; where its step crosses the other one nowhere, on which side of it it lies."""
    return show_bandwidth(even) if even else "everywhere" if max(ratios) < 1 else "nowhere"


def codecs(rehearsal: Rehearsal, timings: Timings, rates: Rates, names: Sequence[str], steps: int, repeat: int) -> None:
    graph, cluster = rehearsal.graph, rehearsal.cluster
    costs = rehearsal.probe([api.plan_of(plan, graph, cluster) for plan in (PLAIN, *map(coded, names))])
    said = {name: swept(coded(name), graph, costs, rates) for name in names}
    evens = {name: sweep.pays.even if sweep.pays else 0.0 for name, sweep in said.items()}
    print(f"\n{rehearsal.task}: " + "; ".join(str(sweep.pays) for sweep in said.values()), flush=True)
    for rate in rates:
        near = [name for name in names if rate in wanted(evens[name], rates)]
        move(rehearsal, rate)
        for _ in range(repeat if near else 0):
            for plan in (PLAIN, *map(coded, near)):
                timings.measure(rehearsal, plan, rate, steps)
    heads = [
        f"{rehearsal.task}: codec",
        "pays below, predicted",
        "measured",
        "ln p/m",
        "over no codec, predicted and measured",
    ]
    print(f"\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}", flush=True)
    for name in names:
        was = [(rate, timings.ratio(rehearsal.task, rate, coded(name), PLAIN)) for rate in rates]
        points = [(rate, ratio) for rate, ratio in was if ratio is not None]
        even, ratios = evened(points, evens[name]), {p.bandwidth: p.seconds / p.plain for p in said[name].points}
        cells = [shown(evens[name], ratios.values()), shown(even, (ratio for _, ratio in points))]
        miss = f"{math.log(evens[name] / even):+.2f}" if evens[name] and even else ""
        each = "; ".join(f"{show_bandwidth(rate)} {ratios[rate]:.2f} {ratio:.2f}" for rate, ratio in points)
        print(f"| {name} | {' | '.join(cells)} | {miss} | {each} |", flush=True)


@dataclass(frozen=True)
class Ordered:
    """An order of messages at a rate, with the sizes that are predicted to be quickest there, beside first come, first
    served: sums in messages of the same size, or servers with a message a tensor; `gain` is predicted."""

    own: str
    plain: str
    gain: float


def ordered(name: str, costs: Costs) -> Ordered:
    """What that order is by these costs."""
    wire = api.plan_of(f"{name},tune=true)", costs.graph, costs.cluster, costs=costs).sync[0].wire
    credit = f",credit_bytes={wire.credit_bytes}" if wire.credit_bytes else ""
    own, plain = f"{name},slice_bytes={wire.slice_bytes}{credit})", ORDERS[name].replace("SIZE", str(wire.slice_bytes))
    plans = [api.plan_of(text, costs.graph, costs.cluster) for text in (own, plain)]
    quick, slow = (step_seconds(last_program(costs.graph, plan, costs.cluster), costs) for plan in plans)
    return Ordered(own, plain, slow / quick - 1)


def order(rehearsal: Rehearsal, timings: Timings, rates: Rates, steps: int, repeat: int) -> None:
    graph, cluster = rehearsal.graph, rehearsal.cluster
    costs = rehearsal.probe([api.plan_of(f"{name})", graph, cluster) for name in ORDERS])
    own = check_links(cluster)
    said = {
        name: {rate: ordered(name, replace(costs, cluster=widened(cluster, rate / own))) for rate in rates}
        for name in ORDERS
    }
    places = {name: {max(at, key=lambda rate: at[rate].gain), rates[-1]} for name, at in said.items()}
    for rate in rates:
        move(rehearsal, rate)
        for _ in range(repeat):
            for each in (at[rate] for name, at in said.items() if rate in places[name]):
                for plan in (each.own, each.plain):
                    timings.measure(rehearsal, plan, rate, steps)
    print(
        f"\n| {rehearsal.task} | rate | gain over first come, first served, predicted | measured |\n|---|---|---|---|"
    )
    for name, at in said.items():
        for rate in sorted(places[name]):
            ratio = timings.ratio(rehearsal.task, rate, at[rate].plain, at[rate].own)
            was = f"{ratio - 1:+.1%}" if ratio else ""
            print(f"| {at[rate].own} | {show_bandwidth(rate)} | {at[rate].gain:+.1%} | {was} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("codecs", "order"), nargs="?", default="codecs")
    parser.add_argument("--tasks", default="bytes-gpt,convnet-8m")
    parser.add_argument("--codecs", default=CODECS)
    parser.add_argument("--rates", default="100M..10G/9")
    parser.add_argument("--cluster", default="lab-4x1g")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs.jsonl"))
    given = parser.parse_args()
    cluster, rates, timings = api.cluster_of(given.cluster), read_sweep(f"bandwidth={given.rates}"), Timings(given.out)
    for task in given.tasks.split(","):
        with Rehearsal(task, api.graph_of(task), cluster) as rehearsal:
            if given.what == "codecs":
                codecs(rehearsal, timings, rates, given.codecs.split(","), given.steps, given.repeat)
            else:
                order(rehearsal, timings, rates, given.steps, given.repeat)


if __name__ == "__main__":
    main()
