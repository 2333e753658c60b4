"""What codecs do to the loss: held-out after equal epochs, each beside an exact all-reduce with the same seeds.

    losses.py [--task digits-cnn] [--epochs 10] [--seeds 5] [--plans "ddp(codec=q8);..."] [--out losses.jsonl]

Four processes on this machine; a lossy plan's loss does not depend on how fast they are. Every run is a line of JSON in
--out and is not done again, so --seeds can grow from call to call.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

from partita import api
from partita.checkpoints.checkpoint import SavePolicy
from partita.lab.rehearsal import Rehearsal
from partita.wire.codec import SPECS

EXACT = "ddp"
LATE = ("pipe_sgd", "pipe_sgd(codec=q8)", "pipe_sgd(codec=topk)", "pipe_sgd(codec=dgc)")
SLOWER = (
    "ddp(rate_scale=0.25)", "ddp(codec=onebit,rate_scale=0.25)", "ddp(codec=threshold,rate_scale=0.25)",
    "pipe_sgd(rate_scale=0.25)", "pipe_sgd(codec=q8,rate_scale=0.25)", "pipe_sgd(codec=topk,rate_scale=0.25)",
    "pipe_sgd(codec=dgc,rate_scale=0.25)",
)  # fmt: skip
ALIKE = 0.01  # a part of the exact loss


def plans_of(steps: int) -> list[str]:
    """Every codec with its own settings; dgc as its authors begin it as well, denser for an epoch each; late ones; at a
    quarter of the task's rate those that its own is too large for."""
    return [*(f"ddp(codec={name})" for name in SPECS), f"ddp(codec=dgc,ramp={steps})", *LATE, *SLOWER]


def trained(task: str, plans: list[str], epochs: int, seed: int) -> Iterator[tuple[str, float]]:
    """Held-out loss of each plan after so many epochs from the same first weights, over the same minibatches."""
    loaded, cluster = api.load(task), api.cluster_of("local:4")
    graph, steps = api.graph_of(loaded), epochs * (len(loaded.data) // loaded.batch_size)
    with Rehearsal(task, graph, cluster, seed=seed) as rehearsal:
        for plan in plans:
            yield plan, rehearsal.train(api.plan_of(plan, graph, cluster), steps=steps, keep=SavePolicy("")).final_loss


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", default="digits-cnn")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--plans")
    parser.add_argument("--out", type=Path, default=Path("losses.jsonl"))
    given = parser.parse_args()
    task = api.load(given.task)
    plans = given.plans.split(";") if given.plans else plans_of(len(task.data) // task.batch_size)
    lines = given.out.read_text().splitlines() if given.out.exists() else []
    done = {(seed, plan): loss for seed, plan, loss in map(json.loads, lines)}
    for seed in range(given.seeds):
        missing = [plan for plan in (EXACT, *plans) if (seed, plan) not in done]
        for plan, loss in trained(given.task, missing, given.epochs, seed) if missing else ():
            done[seed, plan] = loss
            with given.out.open("a") as file:
                file.write(f"{json.dumps([seed, plan, loss])}\n")
    seeds = range(given.seeds)
    exact = mean(done[seed, EXACT] for seed in seeds)
    print("\n| plan | held-out loss, mean (least to most) | over exact | at most 1 % above |\n|---|---|---|---|")
    for plan in (EXACT, *plans):
        losses = [done[seed, plan] for seed in seeds]
        over = mean(losses) / exact - 1
        spread = f"{mean(losses):.4f} ({min(losses):.4f} to {max(losses):.4f})"
        print(f"| {plan} | {spread} | {over:+.1%} | {'yes' if over <= ALIKE else 'no'} |")


if __name__ == "__main__":
    main()
