"""Whether ranks that somebody else launched are about to do the same, checked before they meet in a collective.

If they are not, a backend aborts, hangs, or silently combines what does not belong together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

import torch

from partita.checkpoints.manifest import Identity, differences, identity_of
from partita.cluster.cluster import Cluster
from partita.cluster.writing import write_cluster
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.plan.text import write_plan
from partita.program.held_out import NONE, EvaluationPolicy

Facts = Mapping[str, Any]
ADVICE: Final = {
    "torch": "install one version on all machines",
    "--steps": "start all ranks with the same words",
    "--evaluate-every": "start all ranks with the same words",
    "--patience": "start all ranks with the same words",
    "--plan": "give all ranks the same plan, or the same file",
    "--cluster": "give all ranks the same cluster, or the same file",
}


def facts_of(
    graph: Graph, plan: Plan, cluster: Cluster, *, seed: int, steps: int, evaluation: EvaluationPolicy = NONE
) -> Facts:
    """What must be equal on all ranks, as plain data. An interface is a machine's own, as is its name."""
    machines = replace(cluster, interface="")
    return {
        "torch": torch.__version__, "--steps": steps, "--evaluate-every": evaluation.every,
        "--patience": evaluation.patience, "--plan": [plan.name, write_plan(plan)],
        "--cluster": [cluster.name, write_cluster(machines)], "run": asdict(identity_of(graph, seed, plan.update)),
    }  # fmt: skip


def differing(found: Sequence[Facts]) -> str:
    """The first difference between ranks, as a sentence; "" if there is none."""
    first = found[0]
    for rank, other in enumerate(found):
        for what, advice in ADVICE.items():
            if other[what] != first[what]:
                theirs, ours = (_short(facts[what]) for facts in (other, first))
                has = f"{theirs} and rank 0 {ours}" if theirs != ours else f"{theirs} as rank 0 does, and it is another"
                return f"rank {rank} has {what} {has}; {advice}"
        mine, its = Identity(**first["run"]), Identity(**other["run"])
        for difference in differences(mine, its):
            return f"what rank {rank} trains {difference}; give all ranks the same task and the same words"
        if mine.signature != its.signature:
            return (
                f"rank {rank} captured another step of this model than rank 0; give all ranks the same code, and the "
                "same version of what it imports"
            )
    return ""


def _short(fact: Any) -> Any:
    """A plan or a cluster by its name."""
    return fact[0] if isinstance(fact, list) else fact
