"""What is asked of a training, whoever launches its ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from partita.checkpoints.checkpoint import SavePolicy
from partita.checkpoints.manifest import Identity, identity_of
from partita.cluster.cluster import Cluster
from partita.graph.graph import Graph
from partita.lowering.lower import last_program
from partita.plan.plan import Plan
from partita.program.held_out import NONE, EvaluationPolicy
from partita.program.program import Program
from partita.runs.result import RunResult
from partita.telling import Tell, quiet
from partita.units import Seconds


@dataclass(frozen=True)
class Training:
    """Train a captured step by `plan` on the devices of `cluster`, up to step `steps`, from the weights of `seed` or of
    the file `init`, or with `resume` from the newest checkpoint.

    `keep` says where checkpoints and the result go, `evaluation` when the held-out loss is computed; `keyed`: random
    numbers do not depend on the plan; `timeout` is how long a rank may stand still. `tell` is called with progress,
    `note` with sentences that the user must see, `begin` once the directory is this run's, `end` with the result before
    the run is called finished.
    """

    graph: Graph
    plan: Plan
    cluster: Cluster
    steps: int
    keep: SavePolicy
    seed: int = 0
    init: str = ""
    evaluation: EvaluationPolicy = NONE
    resume: bool = False
    keyed: bool = False
    timeout: Seconds = 60.0
    tell: Tell = quiet
    note: Tell = quiet
    begin: Callable[[], None] = lambda: None
    end: Callable[[RunResult], None] = lambda result: None

    @cached_property
    def program(self) -> Program:
        """The Program of the plan's last phase."""
        return last_program(self.graph, self.plan, self.cluster)

    @cached_property
    def identity(self) -> Identity:
        """By which a checkpoint is known to be of this training."""
        return identity_of(self.graph, self.seed, self.plan.update)
