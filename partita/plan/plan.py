"""A Plan: one point in the space of parallel training methods. Data, no code."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from partita.plan.memory import Memory
from partita.plan.mesh import Mesh, Split, Stage
from partita.plan.schedule import Schedule
from partita.plan.sync import Payload, Servers, Sync


@dataclass(frozen=True, slots=True)
class Correction:
    """A change of the update rule: 'delay' (DC-ASGD), 'staleness' (rate / staleness), 'momentum' (DGC's), ... with its
    settings."""

    name: str
    settings: tuple[tuple[str, float], ...] = ()


class Rule(StrEnum):
    """The task's own update rule, or a layer-wise adaptive one for large minibatches."""

    TASK = "task"
    LARS = "lars"
    LAMB = "lamb"


@dataclass(frozen=True, slots=True)
class Update:
    """The optimizer. With a `rule` other than the task's, rate, momentum, decay and the like are still the task's;
    `trust` is LARS's coefficient.

    The rate rises over `warmup` steps (see `rate_factor`) and is multiplied by `scale`; the minibatch grows by the
    factor `growth` at each step of `grow_at`. `local_state`: what becomes of the workers' optimizer state at an
    agreement, 'keep' or 'reset'.
    """

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
    """The algorithm or layout, where there is a choice, of the operators that the glob `operators` matches."""

    operators: str
    choice: str


DEFERRED: Final = Kernel("*batch_norm*", "deferred")  # running statistics move once a minibatch, not a microbatch
COMPILED: Final = Kernel("*", "compiled")  # segments go through torch.compile


@dataclass(frozen=True, slots=True)
class Phase:
    """The first `steps` steps go by `plan`; then its state migrates to the next phase."""

    steps: int
    plan: Plan


@dataclass(frozen=True, slots=True)
class Plan:
    """stages x mesh x splits x schedule x sync x memory x update x kernels, after the phases in `before`.

    `name` is the recipe call that made it. If samples are divided along an axis and no `sync` is over it, its replicas
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

    def __repr__(self) -> str:
        return f"<Plan {self.name} of {ranks_of(self)} ranks>"

    def _repr_html_(self) -> str:
        """For notebooks: the text that `--plan FILE` reads."""
        from html import escape

        from partita.plan.text import write_plan

        return f"<pre>{escape(write_plan(self))}</pre>"


def ranks_of(plan: Plan) -> int:
    """How many ranks the plan occupies: those of its stages, or else of its mesh, and the servers that have devices of
    their own."""
    placed = {rank for stage in plan.stages for rank in stage.ranks}
    return (len(placed) or plan.mesh.size) + own_servers(plan)


def replicas_of(plan: Plan) -> tuple[int, ...]:
    """How many replicas the model has, or each of its stages where these have ranks of their own."""
    return tuple(len(stage.ranks) for stage in plan.stages if stage.ranks) or (plan.mesh.length("data"),)


def alone(plan: Plan) -> bool:
    """Whether the plan is one worker's, with no server on a device of its own: there is nobody to agree with."""
    return ranks_of(plan) == 1


def agreement_of(plan: Plan) -> Sync:
    """The plan's first agreement; the default one where its replicas never agree."""
    return plan.sync[0] if plan.sync else Sync()


def waits_for_all(plan: Plan) -> bool:
    """Whether the plan is synchronous: every update is the sum of all workers' gradients of one step."""
    sync = agreement_of(plan)
    consistency = sync.consistency
    ahead = consistency.staleness or consistency.need or any(c.name != "momentum" for c in plan.update.corrections)
    return not (isinstance(sync.through, Servers) and (ahead or sync.payload is Payload.DELTA))


def own_servers(plan: Plan) -> int:
    """How many devices serve and do not work; they come after the mesh's ranks."""
    own = (s.through for s in plan.sync if isinstance(s.through, Servers) and s.through.own)
    return max((t.replicas * t.count * sum(t.fan**level for level in range(t.levels)) for t in own), default=0)
