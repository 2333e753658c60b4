"""The verbs, in the order in which a task flows through them: load, capture, plan, simulate, train, compare, verify.

loading     load, task_of, cluster_of, graph_of, capture_to
planning    plan_of, search
predicting  simulate, sweep, fit
training    train, apply
comparing   compare, verify
machines    lab, probe, doctor
checking    what all of them check of their arguments
"""

from __future__ import annotations

from partita.api.comparing import compare, verify
from partita.api.loading import capture_to, cluster_of, graph_of, load, task_of
from partita.api.machines import doctor, lab, probe
from partita.api.planning import plan_of, search
from partita.api.predicting import fit, simulate, sweep
from partita.api.training import apply, train
from partita.lab.costing import batches_of, costs_of
from partita.report.comparison import Comparison
from partita.report.trained import Trained
from partita.report.verdict import Verdict

__all__ = [
    "Comparison", "Trained", "Verdict", "apply", "batches_of", "capture_to", "cluster_of", "compare",
    "costs_of", "doctor", "fit", "graph_of", "lab", "load", "plan_of", "probe", "search", "simulate", "sweep",
    "task_of", "train", "verify",
]  # fmt: skip
