"""Plain PyTorch and Partita on the same task in the same lab, turn by turn.

    run.py TASK CLUSTER --peers ddp,ps --plans "ddp;ps_sync" [--repeat 7] [--steps 15]
    run.py digits-cnn local:1 --peers single,loop --plans single   one batch over and over, and batches that are read
    run.py convnet-8m lab-4x1g --peers fsdp --plans "zero3;zero3(keep=1);zero2"      FSDP2 against divided state
    run.py digits-cnn lab-4x1g --peers gpipe,1f1b --plans "gpipe;one_f_one_b"        torch.distributed.pipelining

Prints one line of JSON for each, and a table of medians with the spread.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from pathlib import Path
from statistics import median

from partita import api
from partita.lab.command import run_command
from partita.lab.rehearsal import Rehearsal

HERE = Path(__file__).resolve().parent
PEERS = HERE.parents[2] / "shared" / "peers" / "torch_peers.py"
OURS = {"loop": "loop.py", "gpipe": "pipelining.py", "1f1b": "pipelining.py"}


def peer_seconds(mode: str, task: str, cluster: str, steps: int) -> float:
    """Seconds a step of the given plain PyTorch mode on every device of the cluster, or of a script of this folder."""
    out, script = io.BytesIO(), HERE / OURS[mode] if mode in OURS else PEERS
    spec = f"{HERE / 'tasks.py'}:{task.replace('-', '_')}"
    code = run_command(api.cluster_of(cluster), [sys.executable, str(script), mode, spec, str(steps)], out=out)
    lines = [line for line in out.getvalue().decode().splitlines() if line.startswith("{")]
    if code or not lines:
        raise SystemExit(f"the peer {mode} ended with {code}: {out.getvalue().decode()[-500:]}")
    return float(json.loads(lines[-1])["step_seconds"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("task", nargs="?", default="convnet-8m")
    parser.add_argument("cluster", nargs="?", default="lab-4x1g")
    parser.add_argument("--peers", default="single,ddp")
    parser.add_argument("--plans", default="ddp")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--steps", type=int, default=15)
    given = parser.parse_args()
    cluster, graph = api.cluster_of(given.cluster), api.graph_of(given.task)
    peers, plans = given.peers.split(","), given.plans.split(";")
    seconds: dict[str, list[float]] = {name: [] for name in [f"torch {p}" for p in peers] + plans}
    with Rehearsal(given.task, graph, cluster) as rehearsal:
        made = {text: api.plan_of(text, graph, cluster) for text in plans}
        if any(plan.stages for plan in made.values()):  # these are cut by what was measured here
            costs = rehearsal.probe(list(made.values()))
            made = {text: api.plan_of(text, graph, cluster, costs=costs) for text in plans}
        for _ in range(given.repeat):
            for mode in peers:
                seconds[f"torch {mode}"].append(peer_seconds(mode, given.task, given.cluster, given.steps))
            for text, plan in made.items():
                seconds[text].append(rehearsal.measure(plan, steps=given.steps, evaluate=False).timeline.step_seconds)
            print(json.dumps({name: times[-1] for name, times in seconds.items()}), flush=True)
    for name, times in seconds.items():
        low, middle, high = (pick(times) * 1e3 for pick in (min, median, max))
        print(f"{name:40s} {middle:8.1f} ms   {low:8.1f} .. {high:8.1f}   n={len(times)}")


if __name__ == "__main__":
    main()
