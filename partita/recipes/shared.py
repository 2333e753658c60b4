"""Knobs that every recipe has: what the plan keeps in memory, whatever its method. They change the finished plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from partita.plan.memory import Memory, Precision, Recompute, Shard
from partita.plan.plan import Plan

SHARED: Final[Mapping[str, Any]] = {
    "shard": Shard.NONE,
    "recompute": Recompute.NONE,
    "budget": 0.0,
    "precision": Precision.TASK,
    "loss_scale": 0.0,
}


def with_memory(plan: Plan, knobs: Mapping[str, Any]) -> Plan:
    """The plan, and the phases before it, with the fields of `Memory` that `knobs` names."""
    if not knobs:
        return plan
    before = tuple(replace(phase, plan=with_memory(phase.plan, knobs)) for phase in plan.before)
    memory: Memory = replace(plan.memory, **knobs)
    return replace(plan, memory=memory, before=before)
