"""Knobs that every recipe has, whatever its method: what is kept in memory, how it is updated. They change the finished
plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from partita.plan.memory import Memory, Precision, Recompute, Shard
from partita.plan.plan import Plan, Rule, Update

SHARED: Final[Mapping[str, Any]] = {
    "shard": Shard.NONE,
    "recompute": Recompute.NONE,
    "budget": 0.0,
    "precision": Precision.TASK,
    "loss_scale": 0.0,
    "rule": Rule.TASK,
    "trust": 0.001,
    "rate_scale": 1.0,
    "rate_warmup": 0,
}
RULES: Final = {"rule": "rule", "trust": "trust", "rate_scale": "scale", "rate_warmup": "warmup"}  # fields of Update


def with_shared(plan: Plan, knobs: Mapping[str, Any]) -> Plan:
    """The plan, and the phases before it, with the fields of `Memory` and `Update` that `knobs` names."""
    if not knobs:
        return plan
    before = tuple(replace(phase, plan=with_shared(phase.plan, knobs)) for phase in plan.before)
    memory: Memory = replace(plan.memory, **{knob: v for knob, v in knobs.items() if knob not in RULES})
    update: Update = replace(plan.update, **{RULES[knob]: v for knob, v in knobs.items() if knob in RULES})
    return replace(plan, memory=memory, update=update, before=before)
