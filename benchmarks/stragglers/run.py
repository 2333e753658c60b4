"""What plans that do not wait for a slow device gain over ddp, predicted and measured.

    run.py [--task bytes-gpt] [--steps 12] [--repeat 3] [--clusters lab-4-slow1,slow5]

Samples count when they are applied. The bound is what the devices compute together over what they do at the pace of
the slowest; for backup_workers, which drops the slowest one's samples, over the pace of the slowest of the others.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from partita import api
from partita.cluster.cluster import Cluster

HERE = Path(__file__).resolve().parent
PLANS = ("ddp", "ad_psgd", "backup_workers(backup=1)", "ssp(staleness=3)", "ps_async")


def bound(plan: str, cluster: Cluster) -> float:
    """The most that a plan can gain over waiting for the slowest device."""
    paces = sorted(device.cores or 1.0 for device in cluster.devices)
    if plan.startswith("backup"):
        return paces[1] * (len(paces) - 1) / (paces[0] * len(paces))
    return sum(paces) / (paces[0] * len(paces))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", default="bytes-gpt")
    parser.add_argument("--clusters", default="lab-4-slow1,slow5")
    parser.add_argument("--plans", default=";".join(PLANS))
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    for name in given.clusters.split(","):
        own = HERE / f"{name}.toml"
        cluster = api.cluster_of(str(own) if own.exists() else name)
        found = api.compare(given.task, given.plans.split(";"), cluster, steps=given.steps, repeat=given.repeat)
        rows = [row for row in found.rows if row.predicted and row.measured]
        for row in rows:
            gain = rows[0].measured.step_seconds / row.measured.step_seconds
            said = rows[0].predicted.step_seconds / row.predicted.step_seconds
            print(
                f"{name:12s} {row.plan:26s} {row.measured.step_seconds * 1e3:8.1f} ms, predicted "
                f"{row.predicted.step_seconds * 1e3:8.1f}; over ddp {gain:.2f}, predicted {said:.2f}, "
                f"bound {bound(row.plan, cluster):.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
