"""How replicas agree: through what, how tightly, how often, on what."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from partita.plan.wire import Wire


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Every rank gets the combination of all."""


@dataclass(frozen=True, slots=True)
class Servers:
    """Parameter servers: `count` shards by bytes; on devices of their `own` (the last ranks) or sharing workers', those
    of the ranks `at` (none: the first); `levels` of a hierarchy, with `fan` servers under each one above the last;
    `replicas` of each shard."""

    count: int = 1
    own: bool = True
    levels: int = 1
    fan: int = 2
    replicas: int = 1
    at: tuple[int, ...] = ()


GRAPHS: Final = ("ring", "torus", "exponential", "complete", "topology")


@dataclass(frozen=True, slots=True)
class Neighbours:
    """A fixed graph of GRAPHS, with doubly stochastic weights."""

    graph: str = "ring"


@dataclass(frozen=True, slots=True)
class Gossip:
    """`partners` random ranks a time; 'push', 'pull' or 'pair' (atomic averaging of two). They are drawn from `seed`
    for `draws` exchanges, and then repeat."""

    direction: str = "pair"
    partners: int = 1
    draws: int = 8
    seed: int = 0


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """The workers, all of one machine, add to the same weights without locks (class racy). With `dtype` these are
    short, and each write is rounded at random, right in the mean."""

    dtype: str = ""


Through: TypeAlias = AllReduce | Servers | Neighbours | Gossip | SharedMemory


class What(StrEnum):
    """What travels."""

    GRADIENT = "gradient"
    PARAMETER = "parameter"
    DELTA = "delta"
    ELASTIC = "elastic"
    DUAL = "dual"
    FACTOR = "factor"


@dataclass(frozen=True, slots=True)
class Tight:
    """How far ranks may part. All zero is lockstep.

    `staleness`: a read at clock c sees every update of clocks < c - staleness (-1: no bound).
    `lag`: updates apply the combination of `lag` steps ago (Pipe-SGD of width K: K-1).
    `need`: contributions that make an update (0: all); those beyond it in a step are `late`: 'drop' or 'keep'.
    """

    staleness: int = 0
    lag: int = 0
    need: int = 0
    late: str = "drop"


@dataclass(frozen=True, slots=True)
class Often:
    """Every `period` steps (0: once, at the end), in `fragments` spread over the period; what a server has comes back
    with every `fetch`-th time only."""

    period: int = 1
    fragments: int = 1
    fetch: int = 1


@dataclass(frozen=True, slots=True)
class Outer:
    """How a combination enters the weights: w += rate * v, v = momentum * v + (combination - w).

    `rate` is EASGD's moving rate alpha, ADMM's step, DiLoCo's outer learning rate; 1 takes the combination as it is.
    A worker keeps the part `keep` of its own weights beside what it takes (Streaming DiLoCo's alpha).
    """

    rate: float = 1.0
    momentum: float = 0.0
    nesterov: bool = False
    penalty: float = 0.0
    keep: float = 0.0


@dataclass(frozen=True, slots=True)
class Sync:
    """One agreement, over mesh axis `over`, of what `parameters` names (a glob; the first match holds)."""

    over: str = "data"
    parameters: str = "*"
    through: Through = AllReduce()
    what: What = What.GRADIENT
    tight: Tight = Tight()
    often: Often = Often()
    outer: Outer = Outer()
    wire: Wire = Wire()
