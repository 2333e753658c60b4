"""Knobs that every recipe has: memory, precision and the update rule.

They change the finished plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final

from partita.plan.memory import Memory, Precision, Recompute, Shard
from partita.plan.plan import COMPILED, DEFERRED, Plan, Rule, Update


class BatchNorm(StrEnum):
    """Whether running batch statistics are updated for each microbatch, or once for the whole minibatch (DP-36)."""

    LOCAL = "local"
    DEFERRED = "deferred"


class Segments(StrEnum):
    """Whether segments run operator by operator, or through torch.compile."""

    EAGER = "eager"
    COMPILED = "compiled"


SHARED: Final[Mapping[str, Any]] = {
    "shard": Shard.NONE,
    "recompute": Recompute.NONE,
    "budget": 0.0,
    "precision": Precision.TASK,
    "sums": Precision.TASK,
    "loss_scale": 0.0,
    "scale_window": 2000,
    "rule": Rule.TASK,
    "trust": 0.001,
    "rate_scale": 1.0,
    "rate_warmup": 0,
    "batch_norm": BatchNorm.LOCAL,
    "segments": Segments.EAGER,
}
KERNELS: Final = {"batch_norm": (BatchNorm.DEFERRED, DEFERRED), "segments": (Segments.COMPILED, COMPILED)}
RULES: Final = {"rule": "rule", "trust": "trust", "rate_scale": "scale", "rate_warmup": "warmup"}  # fields of Update


def with_shared(plan: Plan, knobs: Mapping[str, Any]) -> Plan:
    """The plan, and the phases before it, with the fields of `Memory`, `Update` and `Kernel` that `knobs` names."""
    if not knobs:
        return plan
    before = tuple(replace(phase, plan=with_shared(phase.plan, knobs)) for phase in plan.before)
    fields = {knob: v for knob, v in knobs.items() if knob not in RULES and knob not in KERNELS}
    memory: Memory = replace(plan.memory, **fields)
    update: Update = replace(plan.update, **{RULES[knob]: v for knob, v in knobs.items() if knob in RULES})
    chosen = tuple(kernel for knob, (value, kernel) in KERNELS.items() if knobs.get(knob) is value)
    return replace(plan, memory=memory, update=update, kernels=(*plan.kernels, *chosen), before=before)
