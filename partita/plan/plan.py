"""A Plan: one point in the space of parallel training methods. Data, no code."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from partita.plan.memory import Memory
from partita.plan.mesh import Mesh, Split, Stage
from partita.plan.schedule import Schedule
from partita.plan.sync import Servers, Sync


@dataclass(frozen=True, slots=True)
class Correction:
    """A change to the update rule: 'delay' (DC-ASGD), 'staleness' (rate / staleness), 'momentum' (DGC's), ..."""

    name: str
    settings: tuple[tuple[str, float], ...] = ()


class Rule(StrEnum):
    """The task's own rule, or one whose step is as long as a layer's weights are large, for large minibatches."""

    TASK = "task"
    LARS = "lars"
    LAMB = "lamb"


@dataclass(frozen=True, slots=True)
class Update:
    """The optimizer: the task's own rule unless `rule` names another, which takes rate, momentum, decay and the like
    from it (and `trust` is LARS's own); `warmup` steps of rising rate (see `rate_factor`), the rate times `scale`, the
    batch times `growth` at each of `grow_at`; local state is 'keep'-t or 'reset' at an agreement."""

    rule: Rule = Rule.TASK
    warmup: int = 0
    scale: float = 1.0
    trust: float = 0.001
    growth: float = 1.0
    grow_at: tuple[int, ...] = ()
    local_state: str = "keep"
    corrections: tuple[Correction, ...] = ()


@dataclass(frozen=True, slots=True)
class Kernel:
    """The algorithm or layout of the operators that `operators` matches, where there is a choice."""

    operators: str
    choice: str


DEFERRED: Final = Kernel("*batch_norm*", "deferred")  # running statistics move once a minibatch, not a microbatch
COMPILED: Final = Kernel("*", "compiled")  # segments go through torch.compile; costs are those of its operators


@dataclass(frozen=True, slots=True)
class Phase:
    """The first `steps` steps go by `plan`; then state migrates to what follows."""

    steps: int
    plan: Plan


@dataclass(frozen=True, slots=True)
class Plan:
    """stages x mesh x splits x schedule x sync x memory x update x kernels, after the phases in `before`.

    `name` is the recipe call that made it. No `sync` for an axis along which samples are divided means that replicas
    never agree. A mesh without axes is one rank.
    """

    name: str
    mesh: Mesh = Mesh()
    stages: tuple[Stage, ...] = ()
    splits: tuple[Split, ...] = (Split(),)
    schedule: Schedule = Schedule()
    sync: tuple[Sync, ...] = ()
    memory: Memory = Memory()
    update: Update = Update()
    kernels: tuple[Kernel, ...] = ()
    before: tuple[Phase, ...] = ()

    def _repr_html_(self) -> str:
        """For notebooks: the text that `--plan FILE` reads."""
        from html import escape

        from partita.plan.text import write_plan

        return f"<pre>{escape(write_plan(self))}</pre>"


def ranks_of(plan: Plan) -> int:
    """Ranks that the plan occupies: its mesh, or its stages where these have ranks of their own, and the servers that
    have devices of their own."""
    placed = {rank for stage in plan.stages for rank in stage.ranks}
    return (len(placed) or plan.mesh.size) + own_servers(plan)


def own_servers(plan: Plan) -> int:
    """Devices that serve and do not work; they come after the mesh's ranks."""
    own = (s.through for s in plan.sync if isinstance(s.through, Servers) and s.through.own)
    return max((t.replicas * t.count * sum(t.fan**level for level in range(t.levels)) for t in own), default=0)
