"""Which state is kept where, what is recomputed, and in which precision."""

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
    """Which operators of the forward pass are computed again during backward: none; all except those whose values cross
    between blocks (full); the cheap ones: pointwise operators, softmax, attention scores (selective); or those chosen
    for a memory budget (auto)."""

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
    """In which precision the step is computed: the task's, fp32, fp32 whose products cards round to TF32, or a half
    precision with fp32 master copies of all weights."""

    TASK = "task"
    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"


@dataclass(frozen=True, slots=True)
class Memory:
    """`shard` divides state over the mesh axis `over` (ZeRO). Sharded parameters are gathered `ahead` buckets before
    they are needed; they stay gathered until their next reader where fewer than `keep` buckets are read before that (0:
    they are gathered again for every pass).

    `recomputed` names operators, or modules, that are computed again; empty: those that `recompute` stands for. With
    `auto` it names what was chosen for the `budget`: peak bytes of what comes and goes in a step; up to 1, a fraction
    of what the fullest rank has without recomputation; 0, what the devices have room for.

    In half precision, gradients are summed as they are, or in fp32 if `sums` says so. `loss_scale` is the initial scale
    of an fp16 loss (0: 2^16); it is halved when gradients overflow and doubled after `scale_window` steps without
    overflow (0: never).
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
