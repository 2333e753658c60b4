"""Whether a cluster's devices have the format that a plan computes in."""

from __future__ import annotations

from partita.cluster.cluster import Cluster
from partita.errors import PlanError
from partita.graph.precision import TF32
from partita.plan.memory import Precision
from partita.plan.plan import Plan


def check_formats(plan: Plan, cluster: Cluster) -> None:
    """Raises PlanError for a plan in TF32 on workers that have none: processors, and cards before Ampere."""
    if plan.memory.precision is not Precision.TF32:
        return
    workers = cluster.devices[: plan.mesh.size]
    if without := sorted({d.kind for d in workers if d.backend != "cuda" or TF32 not in dict(d.flops)}):
        raise PlanError(
            f"{plan.name} computes in TF32, which {', '.join(without)} of {cluster.name} does not have: that is in "
            "tensor cores of NVIDIA's from Ampere on, and in their flops here; use precision=fp32, or such cards"
        )
