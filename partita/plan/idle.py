"""What a plan asks for that nothing in it heeds: it is refused, for who asks for something expects that it is done.

What a number leaves without effect is not: `ddp` on one device, divided state of stages with one replica each, deferred
statistics of a model without.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from partita.cluster.cluster import Cluster
from partita.errors import PlanError
from partita.plan.memory import Memory, Precision, Recompute, Shard
from partita.plan.plan import DEFERRED, Plan, Rule, Update
from partita.plan.sync import Consistency, Servers

HALVES: Final = (Precision.BF16, Precision.FP16)


def check_idle(plan: Plan, cluster: Cluster) -> None:
    """Raises PlanError for the first of these, naming what would heed it."""
    for idle, why in (*_of_memory(plan), _of_one_device(plan, cluster), *_of_servers(plan)):
        if idle:
            raise PlanError(f"{plan.name} {why}")


def _of_memory(plan: Plan) -> Iterator[tuple[bool, str]]:
    memory, usual, update = plan.memory, Memory(), plan.update
    yield (
        bool(memory.recomputed) and memory.recompute is Recompute.NONE,
        ("names operators to compute again and recompute=none; use recompute=auto, or name none"),
    )
    yield (
        memory.budget > 0 and memory.recompute is not Recompute.AUTO,
        (
            f"has a budget of {memory.budget:g} and recompute={memory.recompute}, which heeds none; use "
            "recompute=auto, or leave budget out"
        ),
    )
    scaled = memory.loss_scale > 0 or memory.scale_window != usual.scale_window
    yield (
        scaled and memory.precision is not Precision.FP16,
        (f"scales the loss and has precision={memory.precision}; use precision=fp16"),
    )
    yield (
        memory.sums is Precision.FP32 and memory.precision not in HALVES,
        (
            f"sums gradients in fp32 and has precision={memory.precision}, which sums them as they are; use "
            "precision=bf16 or fp16, or leave sums out"
        ),
    )
    gathers = (memory.ahead, memory.keep) != (usual.ahead, usual.keep)
    yield (
        gathers and memory.shard is not Shard.PARAMETERS,
        (
            f"gathers weights {memory.ahead} buckets ahead, keeps {memory.keep}, and has shard={memory.shard}, which "
            "gathers none; use shard=parameters, or leave ahead and keep out"
        ),
    )
    yield (
        update.trust != Update().trust and update.rule is not Rule.LARS,
        (f"has trust={update.trust}, which is LARS's; use it with rule=lars, or leave it out"),
    )
    yield (
        DEFERRED in plan.kernels and plan.schedule.microbatches == 1,
        (
            "defers batch statistics to the last microbatch of a minibatch, and there is one; use microbatches=2 or "
            "more, or leave batch_norm out"
        ),
    )


def _of_one_device(plan: Plan, cluster: Cluster) -> tuple[bool, str]:
    """Of one device no more can be expected."""
    alone = plan.mesh.size == 1 and not plan.stages and cluster.size > 1
    why = f"divides state (shard={plan.memory.shard}) and has one replica; use data=2 or more, or leave shard out"
    return alone and plan.memory.shard is not Shard.NONE, why


def _of_servers(plan: Plan) -> Iterator[tuple[bool, str]]:
    for sync in plan.sync:
        through, late = sync.through, sync.consistency.late
        if isinstance(through, Servers):
            yield (
                through.levels == 1 and through.fan != Servers().fan,
                (f"has {through.fan} servers under each, in one level; use levels=2, or leave fan out"),
            )
        yield (
            late != Consistency().late and not sync.consistency.need,
            (
                f"says of late contributions that it will {late} them, and waits for all; use need=1 or more, or leave "
                "late out"
            ),
        )
