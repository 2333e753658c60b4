"""Plain PyTorch and Partita on the same task in the same lab, turn by turn.

    run.py TASK CLUSTER --peers ddp,ps --plans "ddp;ps_sync" [--repeat 7] [--steps 15]
    run.py digits-cnn local:1 --peers single,loop --plans single   one batch over and over, and batches that are read
    run.py convnet-8m lab-4x1g --peers fsdp --plans "zero3;zero3(keep=1);zero2"      FSDP2 against divided state
    run.py digits-cnn lab-4x1g --peers gpipe,1f1b --plans "gpipe;one_f_one_b"        torch.distributed.pipelining
    run.py digits-cnn,lstm lab-4x1g,lab-4x100m --peers ddp,fsdp --plans "auto;ddp"   the plan that is found, against all

Prints one line of JSON a turn, and a table of medians with the spread. With `auto`, a line that sets it beside the best
of the others: the median of the ratios of each turn, and the 95 % bootstrap interval of that median. Who took more than
--hopeless times as long as the quickest did in each of two turns is not run again. What stands in --out is not either.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from partita import api
from partita.graph.graph import Graph
from partita.lab.command import run_command
from partita.lab.rehearsal import Rehearsal
from partita.plan.plan import Plan

HERE = Path(__file__).resolve().parent
PEERS = HERE.parents[2] / "shared" / "peers" / "torch_peers.py"
OURS = {"loop": "loop.py", "gpipe": "pipelining.py", "1f1b": "pipelining.py"}


class PeerError(RuntimeError):
    """A peer that ended without a time."""


def peer_seconds(mode: str, task: str, cluster: str, steps: int) -> float:
    """Seconds a step of the given plain PyTorch mode on every device of the cluster, or of a script of this folder."""
    out, script = io.BytesIO(), HERE / OURS[mode] if mode in OURS else PEERS
    spec = f"{HERE / 'tasks.py'}:{task.replace('-', '_')}"
    code = run_command(api.cluster_of(cluster), [sys.executable, str(script), mode, spec, str(steps)], out=out)
    lines = [line for line in out.getvalue().decode().splitlines() if line.startswith("{")]
    if code or not lines:
        raise PeerError(f"the peer {mode} ended with {code}: {out.getvalue().decode()[-500:]}")
    return float(json.loads(lines[-1])["step_seconds"])


def turns_of(
    task: str, cluster: str, peers: Sequence[str], plans: Sequence[str], repeat: int, steps: int, hopeless: float
) -> dict[str, list[float]]:
    """Seconds a step of each peer and plan, a number a turn; a peer that cannot run the task is left out and named."""
    machines, graph = api.cluster_of(cluster), api.graph_of(task)
    seconds = dict[str, list[float]]()
    with Rehearsal(task, graph, machines) as rehearsal:
        made = planned(plans, task, graph, rehearsal)
        modes = {f"torch {mode}": mode for mode in peers}
        left = [*modes, *made]
        for turn in range(repeat):
            for name in tuple(left):
                try:
                    if name in modes:
                        spent = peer_seconds(modes[name], task, cluster, steps)
                    else:
                        spent = rehearsal.measure(made[name], steps=steps, evaluate=False).timeline.step_seconds
                except PeerError as error:
                    left.remove(name)
                    print(f"{task} on {cluster}: {error}", flush=True)
                    continue
                seconds.setdefault(name, []).append(spent)
            print(json.dumps({name: seconds[name][-1] for name in left}), flush=True)
            if turn > 0:
                quickest = min(median(seconds[name]) for name in left)
                left = [name for name in left if name == "auto" or min(seconds[name]) <= hopeless * quickest]
    return seconds


def planned(plans: Sequence[str], task: str, graph: Graph, rehearsal: Rehearsal) -> dict[str, Plan]:
    """The plans by their text; stages are cut by what was measured here."""
    made = {text: api.plan_of(text, graph, rehearsal.cluster, task=task) for text in plans}
    if "auto" in made:
        print(f"auto on {rehearsal.cluster.name}: {made['auto'].name}", flush=True)
    if any(plan.stages for plan in made.values()):
        costs = rehearsal.probe(list(made.values()))
        cut = [text for text, plan in made.items() if plan.stages and text != "auto"]
        made |= {text: api.plan_of(text, graph, rehearsal.cluster, costs=costs) for text in cut}
    return made


def beside_the_best(seconds: Mapping[str, Sequence[float]], draws: int = 10_000) -> str:
    """What `auto` takes over what the best of the others takes, turn by turn."""
    best = min((name for name in seconds if name != "auto"), key=lambda name: median(seconds[name]))
    ratios = [ours / theirs for ours, theirs in zip(seconds["auto"], seconds[best], strict=False)]
    dice = random.Random(0)
    drawn = sorted(median(dice.choices(ratios, k=len(ratios))) for _ in range(draws))
    low, high = drawn[int(0.025 * draws)], drawn[int(0.975 * draws)]
    return f"auto / {best}: {median(ratios):.3f} ({low:.3f} to {high:.3f}, {len(ratios)} turns)"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tasks", nargs="?", default="convnet-8m")
    parser.add_argument("clusters", nargs="?", default="lab-4x1g")
    parser.add_argument("--peers", default="single,ddp")
    parser.add_argument("--plans", default="ddp")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--hopeless", type=float, default=1.5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    peers, plans = list(filter(None, given.peers.split(","))), given.plans.split(";")
    lines = given.out.read_text().splitlines() if given.out and given.out.exists() else []
    found = {(task, cluster): seconds for task, cluster, seconds in map(json.loads, lines)}
    for task in given.tasks.split(","):
        for cluster in given.clusters.split(","):
            if (task, cluster) not in found:
                seconds = turns_of(task, cluster, peers, plans, given.repeat, given.steps, given.hopeless)
                found[task, cluster] = seconds
                if given.out:
                    with given.out.open("a") as file:
                        file.write(json.dumps([task, cluster, seconds]) + "\n")
            print(f"{task} on {cluster}")
            for name, times in found[task, cluster].items():
                low, middle, high = (pick(times) * 1e3 for pick in (min, median, max))
                print(f"{name:40s} {middle:8.1f} ms   {low:8.1f} .. {high:8.1f}   n={len(times)}")
            if "auto" in found[task, cluster]:
                print(beside_the_best(found[task, cluster]), flush=True)


if __name__ == "__main__":
    main()
