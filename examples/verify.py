"""Does a plan train as it says? Each against plain PyTorch in fp64, in one process.

python examples/verify.py [PLAN ...]
"""

from __future__ import annotations

import sys

import partita as pt

PLANS = ("ddp(microbatches=2)", "ps_sync(servers=2,own=false)", "pipe_sgd(staleness=2)", "local_sgd(period=3)")


def main(*plans: str) -> None:
    """Print each plan's class, how far it is from its serial training, and which training that is."""
    cluster = pt.Cluster.load("local:3")
    for plan in plans or PLANS:
        found = pt.verify("digits-cnn", plan, cluster)
        print(f"{plan}: {'equal' if found.equal else 'NOT equal'}, class {found.semantics}")
        print(f"    fp64: {found.max_difference:.1e} from {found.against} (tolerance {found.tolerance:.0e})")
        print(f"    fp32: {found.fp32_difference:.1e}; a control with other sums {found.control_difference:.1e}")


if __name__ == "__main__":
    main(*sys.argv[1:])
