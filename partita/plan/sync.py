"""How replicas agree: through which topology, on which payload, how consistently and how often.

ssp(staleness=3)       Sync(through=Servers(), consistency=Consistency(staleness=3))
local_sgd(period=8)    Sync(payload=Payload.PARAMETER, frequency=Frequency(period=8))
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final, TypeAlias

from partita.plan.wire import Wire


@dataclass(frozen=True, slots=True)
class AllReduce:
    """An all-reduce: every rank gets the mean of all contributions."""


@dataclass(frozen=True, slots=True)
class Servers:
    """Parameter servers: `count` of them divide the parameters, by bytes.

    `own`: they have devices of their own, the last ranks; otherwise they share those of the workers `at` (empty: the
    first workers). `levels` of a hierarchy, with `fan` servers below each server above the last level; `replicas` of
    each server.
    """

    count: int = 1
    own: bool = True
    levels: int = 1
    fan: int = 2
    replicas: int = 1
    at: tuple[int, ...] = ()


GRAPHS: Final = ("ring", "torus", "exponential", "complete", "topology")
DIRECTIONS: Final = ("push", "pull", "pair")


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Each worker averages with its neighbours in a fixed graph (one of GRAPHS), by doubly stochastic weights; or with
    those of each exchange in turn, by the matrices of a plugin's graph."""

    graph: str = "ring"


@dataclass(frozen=True, slots=True)
class Gossip:
    """Each worker exchanges with `partners` random ranks: 'push', 'pull' or 'pair' (atomic averaging of two).
    Partners of the first `draws` exchanges are drawn from `seed`; then the same sequence repeats."""

    direction: str = "pair"
    partners: int = 1
    draws: int = 8
    seed: int = 0


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """Workers on one machine add to the same weights without locks (HOGWILD!; semantic class racy). With a `dtype` the
    weights are kept in it, and each write is rounded stochastically, so that it is unbiased (Buckwild!)."""

    dtype: str = ""


Topology: TypeAlias = AllReduce | Servers | Neighbours | Gossip | SharedMemory


class Payload(StrEnum):
    """What workers send: gradients, weights, the change of the weights since the last agreement, the elastic force
    towards a centre (EASGD), dual variables (ADMM), or the two factors of a dense layer's gradient."""

    GRADIENT = "gradient"
    PARAMETER = "parameter"
    DELTA = "delta"
    ELASTIC = "elastic"
    DUAL = "dual"
    FACTOR = "factor"


@dataclass(frozen=True, slots=True)
class Consistency:
    """How far the weights of two ranks may differ in age, in steps. All zero: synchronous (lockstep).

    `staleness`: a read at clock c sees every update of clocks < c - staleness (-1: no bound).
    `lag`: an update applies the gradients of `lag` steps ago (Pipe-SGD of width K: K-1).
    `need`: how many contributions make an update (0: all); `late`: what becomes of those that come after, 'drop' or
    'keep'.
    """

    staleness: int = 0
    lag: int = 0
    need: int = 0
    late: str = "drop"


@dataclass(frozen=True, slots=True)
class Frequency:
    """Every `period` steps (0: once, at the end of training). `fragments`: parts of the model that agree in turn,
    spread over the period (Streaming DiLoCo). `fetch`: a worker fetches the weights at every `fetch`-th push."""

    period: int = 1
    fragments: int = 1
    fetch: int = 1


@dataclass(frozen=True, slots=True)
class Outer:
    """How a combination enters the weights: w += rate * v, v = momentum * v + (combination - w).

    `rate` is EASGD's moving rate alpha, ADMM's step or DiLoCo's outer learning rate; 1 takes the combination as it is.
    `nesterov`: Nesterov's momentum. `penalty`: ADMM's rho. `keep`: the share of a worker's own weights in what it goes
    on with (Streaming DiLoCo's alpha).
    """

    rate: float = 1.0
    momentum: float = 0.0
    nesterov: bool = False
    penalty: float = 0.0
    keep: float = 0.0


READ: Final = {  # the settings of Outer that an agreement on a payload reads; on others none
    Payload.DELTA: ("rate", "momentum", "nesterov", "keep"), Payload.ELASTIC: ("rate",), Payload.DUAL: ("penalty",),
}  # fmt: skip


def unread(outer: Outer, payload: Payload) -> tuple[str, ...]:
    """The settings that were given and that an agreement on `payload` does not read."""
    given = (one.name for one in fields(outer) if getattr(outer, one.name) != one.default)
    return tuple(name for name in given if name not in READ.get(payload, ()))


@dataclass(frozen=True, slots=True)
class Sync:
    """One agreement, along the mesh axis `over`, on the parameters whose names match the glob `parameters`. A parameter
    belongs to the first Sync of the plan that matches it."""

    over: str = "data"
    parameters: str = "*"
    through: Topology = AllReduce()
    payload: Payload = Payload.GRADIENT
    consistency: Consistency = Consistency()
    frequency: Frequency = Frequency()
    outer: Outer = Outer()
    wire: Wire = Wire()
