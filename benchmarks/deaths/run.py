"""A worker is killed: what becomes of the others' pace, and of the loss?

    run.py [digits-cnn | bytes-gpt] [--steps 300] [--cluster lab-4x1g] [--plans "ps_async;diloco"]

Each plan trains three times: whole, with rank 1 killed after a third of its samples and gone for good, and with rank 1
killed and started again. A line a plan: rank 0's pace after the death beside that before it (the others' throughput
falls by its share where this is 1; the bar is 0.9), and the losses at the end beside the whole run's (the bar is 5 %).
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from partita import api

PLANS = "ps_async;ssp(staleness=3);gossip;ad_psgd;easgd(servers=1);easgd;diloco(period=20,momentum=0.5)"
TASKS = Path(__file__).with_name("tasks.py")


def trained(task: str, plan: str, cluster: str, steps: int, **env: str) -> api.Trained:
    """A run under these environment variables."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as place:
        os.environ |= {"DIED": f"{place}/died", **env}
        try:
            done = api.train(f"{TASKS}:{task.replace('-', '_')}", plan, api.cluster_of(cluster), steps=steps, seed=0)
        finally:
            restored(before)
    assert done is not None
    return done


def restored(before: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(before)


def pace(done: api.Trained, first: float, last: float) -> float:
    """Steps a second of rank 0 between two parts of the run."""
    rows = done.loss[int(first * len(done.loss)) : int(last * len(done.loss))]
    return (rows[-1][0] - rows[0][0]) / (rows[-1][1] - rows[0][1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", default="digits-cnn", choices=("digits-cnn", "bytes-gpt"))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--cluster", default="lab-4x1g")
    parser.add_argument("--plans", default=PLANS)
    asked = parser.parse_args()
    batch = api.load(asked.task).batch_size
    for plan in asked.plans.split(";"):
        dies = {"KILLED": "1", "DIES": str(asked.steps * batch // api.cluster_of(asked.cluster).size // 3)}
        whole = trained(asked.task, plan, asked.cluster, asked.steps)
        gone = trained(asked.task, plan, asked.cluster, asked.steps, **dies)
        back = trained(asked.task, plan, asked.cluster, asked.steps, **dies, BACK="1")
        kept = pace(gone, 0.5, 1.0) / pace(gone, 0.05, 0.3)
        lost, found = (one.final_loss / whole.final_loss - 1 for one in (gone, back))
        late = "" if any("is back" in note for note in back.notes) else " (too late)"
        print(f"{plan}: pace {kept:.2f}; loss {lost:+.1%}, back {found:+.1%}{late}", flush=True)


if __name__ == "__main__":
    main()
