"""What is kept where, and in which precision."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Shard(StrEnum):
    """Which state is divided over an axis (ZeRO's stages 0 to 3)."""

    NONE = "none"
    OPTIMIZER = "optimizer"
    GRADIENTS = "gradients"
    PARAMETERS = "parameters"


class Recompute(StrEnum):
    """What of forward is computed again in backward: nothing, all but what crosses from block to block, what is cheap
    (pointwise operators, softmax, attention's scores), or what was chosen for a budget."""

    NONE = "none"
    FULL = "full"
    SELECTIVE = "selective"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Offload:
    """Move `what` ('activations', 'parameters', 'gradients', 'optimizer') of the operators that `operators` matches
    `to` 'host' or 'disk', `ahead` operators before it is needed again; `update` there if the optimizer runs there."""

    what: str
    operators: str = "*"
    to: str = "host"
    ahead: int = 1
    update: bool = False


class Precision(StrEnum):
    """In what the step computes: as the task says, in fp32, or in a short dtype with masters of all weights in fp32."""

    TASK = "task"
    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"


@dataclass(frozen=True, slots=True)
class Memory:
    """`recomputed` names operators or modules whose operators are computed again, in place of those that `recompute`
    stands for by itself; `auto` names what it chose for the `budget`: bytes of what comes and goes in a step at its
    peak, up to 1 a fraction of the fullest rank's without recomputing (0: what the devices have room for).
    Short gradients are summed as they are, or in fp32 where `sums` says so. `loss_scale` is where the scale of an fp16
    loss starts (0: 2^16); it halves when gradients overflow and doubles after `scale_window` steps in which none did
    (0: it stays).

    Sharded parameters are gathered `ahead` buckets before their turn, and stay until their next reader where fewer than
    `keep` buckets are read before that (0: gathered again for every pass).
    """

    shard: Shard = Shard.NONE
    over: str = "data"
    ahead: int = 1
    keep: int = 0
    recompute: Recompute = Recompute.NONE
    recomputed: tuple[str, ...] = ()
    budget: float = 0.0
    offload: tuple[Offload, ...] = ()
    precision: Precision = Precision.TASK
    sums: Precision = Precision.TASK
    loss_scale: float = 0.0
    scale_window: int = 2000
    tiles: int = 1
