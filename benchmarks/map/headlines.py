"""What papers gained over their baselines, and the same over a tuned overlapped DDP, beside what the wire allows.

    headlines.py [--task convnet-8m] [--cluster lab-4x1g] [--steps 6] [--papers "Pipe-SGD;QSGD"] [--out headlines.jsonl]

The bound is max(c, m) of DDP's bytes: what any method that sends them could reach. Each plan's step is a line of JSON
in --out, and is not measured again.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

from partita import api
from partita.lab.rehearsal import Rehearsal
from partita.lowering.lower import last_program
from partita.simulator.simulate import simulate

SERVER = "ps_sync(bucket_bytes=1073741824)"
LATE = "ddp(bucket_bytes=1073741824,first_bucket_bytes=1073741824,order=fifo)"  # one sum after backward


@dataclass(frozen=True)
class Claim:
    """A paper's gain over its baseline, as cited, and the two as plans."""

    paper: str
    gain: str
    baseline: str
    plan: str


CLAIMS = (
    Claim("Pipe-SGD", "5.4", SERVER, "pipe_sgd(codec=q8)"),
    Claim("QSGD", "1.8", LATE, "ddp(codec=qsgd)"),
    Claim("1-bit SGD", "6.3 on 8 devices over one", "single", "ddp(codec=onebit)"),
    Claim("INCEPTIONN", "2.2 to 3.1", SERVER, "ddp(codec=inceptionn)"),
    Claim("DGC", "270 to 600 times fewer bytes", LATE, "ddp(codec=dgc)"),
    Claim("P3", "1.25 to 1.66", "ps_sync(bucket_bytes=160000)", "p3"),
    Claim("TicTac", "1.19", "ps_sync(bucket_bytes=0)", "tictac"),
    Claim("ByteScheduler", "up to 2.96", LATE, "bytescheduler"),
    Claim("Poseidon", "15.5 on 16 devices over one", "single", "poseidon"),
    Claim("SparkNet", "4 to 5 on 10 devices", LATE, "local_sgd(period=10)"),
    Claim("D-PSGD", "up to 10 on slow links", SERVER, "d_psgd"),
    Claim("AD-PSGD", "4 to 8 where links are shared", LATE, "ad_psgd"),
)
TUNED = tuple(f"ddp(bucket_bytes={size},first_bucket_bytes={size // 4})" for size in (2**20, 2**22, 2**24, 2**26))


def measure(task: str, name: str, plans: list[str], steps: int, place: Path, known: dict[str, float]) -> None:
    """Seconds a step of each plan that is not known, and what computing takes (c) and the wire (m) of DDP's bytes."""
    graph, cluster = api.graph_of(task), api.cluster_of(name)
    with Rehearsal(task, graph, cluster) as rehearsal:
        if "c" not in known:
            costs = rehearsal.probe([api.plan_of("ddp", graph, cluster)])
            said = simulate(last_program(graph, api.plan_of("ddp", graph, cluster), cluster), costs)
            b = said.breakdown
            computing, wire = b.forward + b.backward + b.optimizer, max(said.wire_sent) / cluster.narrowest
            keep(place, known, {"c": computing, "m": wire})
        for plan in plans:
            if plan not in known:
                take = rehearsal.measure(api.plan_of(plan, graph, cluster), steps=steps, evaluate=False)
                keep(place, known, {plan: take.timeline.step_seconds})
                print(f"{plan}: {take.timeline.step_seconds * 1e3:.1f} ms", flush=True)


def keep(place: Path, known: dict[str, float], fresh: dict[str, float]) -> None:
    known |= fresh
    with place.open("a") as file:
        file.writelines(f"{json.dumps(pair)}\n" for pair in fresh.items())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", default="convnet-8m")
    parser.add_argument("--cluster", default="lab-4x1g")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--papers", default=";".join(claim.paper for claim in CLAIMS))
    parser.add_argument("--out", type=Path, default=Path("headlines.jsonl"))
    given = parser.parse_args()
    lines = given.out.read_text().splitlines() if given.out.exists() else []
    known = dict(map(json.loads, lines))
    claims = [claim for claim in CLAIMS if claim.paper in given.papers.split(";")]
    plans = [*TUNED, *(plan for claim in claims for plan in (claim.baseline, claim.plan))]
    measure(given.task, given.cluster, plans, given.steps, given.out, known)
    tuned, bound = min(TUNED, key=known.__getitem__), max(known["c"], known["m"])
    print(f"\n{given.task} on {given.cluster}: c {known['c'] * 1e3:.0f} ms, m {known['m'] * 1e3:.0f} ms")
    print(f"tuned DDP: {tuned}, {known[tuned] * 1e3:.0f} ms, {known[tuned] / bound:.2f} of its bound\n")
    heads = ("paper", "its gain", "here, over its baseline", "over tuned DDP", "step over DDP's bound")
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for claim in claims:
        step = known[claim.plan]
        gains = f"{known[claim.baseline] / step:.2f} | {known[tuned] / step:.2f} | {step / bound:.2f}"
        print(f"| {claim.paper}: {claim.plan} over {claim.baseline} | {claim.gain} | {gains} |")


if __name__ == "__main__":
    main()
