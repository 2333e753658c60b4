"""Into which parts a plan divides a minibatch, and whether each has the samples that it needs."""

from __future__ import annotations

from partita.errors import PlanError
from partita.graph.graph import Graph
from partita.graph.statistics import fewest_samples
from partita.plan.plan import Plan


def check_parts(plan: Plan, graph: Graph) -> None:
    """Raises PlanError for parts that no samples are left for, or too few to normalise."""
    batch, m = graph.minibatch, plan.schedule.microbatches
    if m < 1:
        raise PlanError(f"{plan.name} asks for {m} microbatches; 1 or more are allowed")
    workers = plan.mesh.length("data")
    if batch < workers * m:
        raise PlanError(
            f"{plan.name}: a minibatch of {batch} does not divide into {workers} replicas x {m} microbatches = "
            f"{workers * m} parts; use fewer parts, or a larger batch_size, {workers * m} or more"
        )
    if not graph.symbolic and (workers * m > 1 or batch != graph.batch):
        raise PlanError(
            f"{plan.name} divides minibatches, and the step of {graph.name} was captured for {graph.batch} samples: "
            f"{graph.blind.rstrip('.')}; use `single` without microbatches"
        )
    least, fewest = fewest_samples(graph), batch // workers // m
    if fewest < least:
        raise PlanError(
            f"{plan.name}: a minibatch of {batch} in {workers} replicas x {m} microbatches has parts of {fewest} "
            f"sample, and the batch normalisation of {graph.name} needs {least}, for one value has no variance; use "
            f"fewer parts, or a larger batch_size, {least * workers * m} or more"
        )
