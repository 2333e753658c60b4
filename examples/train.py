"""Train real digits by a plan, two processes on this machine, and keep the weights.

python examples/train.py [PLAN]
"""

from __future__ import annotations

import sys
from pathlib import Path

import partita as pt
from partita.units import show_seconds


def main(plan: str = "ddp") -> None:
    """Print the loss now and then, and where the weights are. A call again says what this plan came to."""
    out = Path("runs", f"train-{Path(plan).name}")
    cluster = pt.Cluster.load("local:2")
    done = pt.train("digits-cnn", plan, cluster, steps=100, evaluate_every=50, out=str(out), resume=True)
    if done is None:  # under torchrun only rank 0 has a result
        return
    for step, seconds, loss in done.loss[::10]:
        print(f"step {step:4}  {seconds:6.2f} s  loss {loss:.4f}")
    for steps, held_out in done.evaluations:
        print(f"validation loss {held_out:.4f} after {steps} steps")
    print(f"{show_seconds(done.timeline.step_seconds)} a step; the best weights: {done.best_path}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
