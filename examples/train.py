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
    done = pt.train("digits-cnn", plan, pt.Cluster.load("local:2"), steps=100, out=str(out), resume=True)
    if done is None:  # under torchrun only rank 0 has a result
        return
    for step, seconds, loss in done.loss[::10]:
        print(f"step {step:4}  {seconds:6.2f} s  loss {loss:.4f}")
    print(f"validation loss {done.final_loss:.4f}, {show_seconds(done.timeline.step_seconds)} a step")
    print(f"weights: {done.weights_path}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
