"""All-reduces by our schedules and by gloo's own, size by size, in labs: what is chosen, what would have been best.

    run.py [--clusters lab-4x1g,lab-4x10g,lab-2x2] [--bytes 65536,...] [--turns 7] [--out runs.jsonl]

The choice is `collective=auto`'s, by costs that are probed there before. Candidates take turns, the first of which does
not count; one that takes more than twice as long as the best rests after two. Each cluster is a line of JSON in --out
and is not measured again.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from partita import api
from partita.lab.command import run_command
from partita.lab.rehearsal import Rehearsal
from partita.probes.schedule_timing import schedule_seconds
from partita.recipes.fastest import candidates, choice, timed
from partita.runs.heap import set_aside
from partita.searches.sweep import crossings
from partita.transport.processes import Processes
from partita.units import show_bandwidth
from partita.wire.algorithms import BACKEND

SIZES = (2**16, 2**18, 2**20, 2**22, 2**24, 2**26)
TASK = "digits-cnn"  # costs want one; links are alike for all
PAIR = ("halving", "ring")
Times = dict[str, float]  # seconds of an all-reduce by the schedule's name


def on_a_device(names: Sequence[str], sizes: Sequence[int], turns: int) -> None:
    """A rank's part; rank 0 prints a line of JSON a size: the median of each schedule's seconds."""
    torch.set_num_threads(1)
    set_aside()
    dist.init_process_group("gloo")
    Processes(dist.get_rank()).join([], 60.0, messages=True)
    for size in sizes:
        found = schedule_seconds(names, [size], turns)
        if dist.get_rank() == 0:
            print(json.dumps([size, {name: seconds for name, [(_, seconds)] in found.items()}]), flush=True)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # threads of lanes and of messages are still there, which now and then ends in an abort


def measured(cluster: str, names: Sequence[str], sizes: Sequence[int], turns: int) -> dict[int, Times]:
    """Seconds of each size by each schedule, in a lab of the cluster."""
    out, asked = io.BytesIO(), json.dumps([names, sizes, turns])
    code = run_command(api.cluster_of(cluster), [sys.executable, str(Path(__file__).resolve()), asked], out=out)
    if code:
        raise SystemExit(f"the ranks on {cluster} ended with {code}")
    return dict(json.loads(line) for line in out.getvalue().decode().splitlines() if line.startswith("["))


def predicted(cluster: str, sizes: Sequence[int]) -> dict[int, Times]:
    """The same by costs that are probed in a lab of the cluster."""
    graph, found = api.graph_of(TASK), api.cluster_of(cluster)
    with Rehearsal(TASK, graph, found) as rehearsal:
        costs = rehearsal.probe([api.plan_of("ddp", graph, found)], schedules=candidates(found.size))
    return {size: {name: s for s, name in timed(size, found.size, None, costs)} for size in sizes}


def turns(times: dict[int, Times]) -> str:
    """Which of halving-doubling and the ring is ahead, by size."""
    curves = [tuple((size, row[name]) for size, row in times.items()) for name in PAIR]
    first = min(PAIR, key=next(iter(times.values())).__getitem__)
    later = [f"{PAIR[below]} from {size:,.0f} bytes on" for size, below in crossings(*curves)]
    return ", ".join([f"{first} at first", *later])


def table(cluster: str, said: dict[int, Times], was: dict[int, Times]) -> None:
    """A row a size: Gbit/s of the bus, the choice beside the best, ours beside gloo's, and the link's use."""
    names, world = list(next(iter(was.values()))), api.cluster_of(cluster).size
    wide = api.cluster_of(cluster).narrowest
    print(f"\n{cluster}: {world} ranks, {show_bandwidth(wide)}; Gbit/s of the bus: 2 (p-1)/p bytes over seconds\n")
    heads = ["bytes", *names, "chosen", "of the best", "best", "ours / gloo", "link use"]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for size, row in was.items():
        moved = 2 * (world - 1) / world * size
        best, chosen = min(row, key=row.__getitem__), choice((s, name) for name, s in said[size].items())
        ours = min(seconds for name, seconds in row.items() if name != BACKEND)
        cells = [f"{size:,}", *(f"{8e-9 * moved / row[name]:.3f}" for name in names), chosen]
        cells += [f"{row[best] / row[chosen]:.3f}", best, f"{row[BACKEND] / ours:.3f}"]
        print(f"| {' | '.join(cells)} | {moved / row[chosen] / wide:.1%} |", flush=True)
    print(f"\nahead as predicted: {turns(said)}\nahead as measured: {turns(was)}", flush=True)


def keyed(times: dict[str, Times]) -> dict[int, Times]:
    return {int(size): row for size, row in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clusters", default="lab-4x1g,lab-4x10g,lab-2x2")
    parser.add_argument("--bytes", default=",".join(map(str, SIZES)))
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    sizes = [int(word) for word in given.bytes.split(",")]
    lines = given.out.read_text().splitlines() if given.out and given.out.exists() else []
    done = {row["cluster"]: row for row in map(json.loads, lines)}
    for name in given.clusters.split(","):
        if name not in done:
            cluster = api.cluster_of(name)
            said = predicted(name, sizes)
            was = measured(name, candidates(cluster.size), sizes, given.turns)
            line = json.dumps({"cluster": name, "said": said, "was": was})
            done[name] = json.loads(line)
            if given.out:
                with given.out.open("a") as file:
                    file.write(f"{line}\n")
        table(name, keyed(done[name]["said"]), keyed(done[name]["was"]))


if __name__ == "__main__":
    if "RANK" in os.environ:
        on_a_device(*json.loads(sys.argv[1]))
    else:
        main()
