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


@dataclass(frozen=True, slots=True)
class Memory:
    shard: Shard = Shard.NONE
    over: str = "data"
    recompute: Recompute = Recompute.NONE
    recomputed: tuple[str, ...] = ()
    offload: tuple[Offload, ...] = ()
    precision: str = ""
    loss_scale: float = 0.0
    tiles: int = 1
