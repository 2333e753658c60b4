"""The held-out loss of a run's weights while it goes on, between two rounds of all ranks.

rank 0   ###|  gathers the weights, builds a module of them, evaluates it  |  tells the loss  |###
rank 1   ###|  gives its part                waits as long as that takes      hears it        |###

What is evaluated is what the next round will read, and where replicas differ until the last round what that would make
of a copy of them: what a run of so many steps would end with, but for gradients that come late. Nothing of the run
changes: module and copy are new ones, random generators are put back. All ranks know all losses, and so agree on when
training is over.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open

from partita.errors import OptionError
from partita.program.held_out import HeldOut, best_of, is_over
from partita.program.program import Program
from partita.runs.assembly import make_rank
from partita.runs.heartbeat import Heartbeat, at_work
from partita.runs.session import Job, Report, Session
from partita.runtime.gather import gathered_leaves, parted
from partita.runtime.generators import random_states, set_random_states
from partita.runtime.leg import Interval
from partita.runtime.owned import is_allocated, release
from partita.runtime.rank import Rank
from partita.runtime.state import State, make_state
from partita.runtime.worker import drive
from partita.transport.messages import gather, spread
from partita.units import Seconds

BEST: Final = "best.safetensors"
STEP: Final = "step"


@dataclass
class Evaluations:
    """Those of one run on one rank: `found` so far, which took `seconds` and `cores`, core-seconds of this process.

    `failed`: they cannot be computed. `best` is the file of the best weights, on rank 0.
    """

    session: Session
    job: Job
    report: Report
    found: HeldOut = ()
    seconds: Seconds = 0.0
    cores: Seconds = 0.0
    failed: bool = False
    best: str = field(default="", init=False)

    @property
    def over(self) -> bool:
        """Whether training ends here."""
        return is_over(self.found, self.job.patience)

    def go_on(self, found: HeldOut) -> None:
        """Take in what a run had found that now goes on from a checkpoint."""
        self.found = found
        path, best = Path(self.job.out) / BEST, best_of(found)
        if self.session.rank or not self.job.out or not path.exists():
            return
        self.best = str(path)
        if best is None or _step_of(path) != best[0]:
            self.best = ""
            self.report({"note": f"{path} is not of what this run goes on from; the next best weights replace it"})

    def evaluate(self, rank: Rank, step: int, end: Program | None) -> None:
        """Evaluate the weights after `step` steps, which the Program `end` brings together; all ranks of the run's
        Program must call it."""
        if self.failed:
            return
        begun, used = time.perf_counter(), time.process_time()
        number, world = rank.rank, rank.program.size
        gather(None, number, world)
        with self._unchanged(rank.state, rank.program):
            leaves = self._weights(rank, step, end)
            if number == 0:
                with at_work(self.report, {"evaluating": step}):
                    model = self.session.module(leaves)
                    del leaves
                    loss = self.session.evaluate(model, self.report, f"the held-out loss from step {step} on")
                    if loss is None:
                        self.failed = True
                    else:
                        self._add(model, step, loss)
        failed, found = spread([self.failed, self.found], number, world)
        self.failed, self.found = failed, tuple((int(at), float(loss)) for at, loss in found)
        self.seconds += time.perf_counter() - begun
        self.cores += time.process_time() - used

    def end(self, step: int, loss: float, weights: str) -> None:
        """Take in the loss of what the run ends with, whose file of weights there is anyhow; a longer run evaluates
        nothing there unless it is due."""
        if self.job.evaluate_every and all(at < step for at, _ in self.found):
            self.found = (*self.found, (step, loss))
            self.best = weights if best_of(self.found) == (step, loss) else self.best

    def _add(self, model: Any, step: int, loss: float) -> None:
        """Note and tell a loss, and keep the weights if there were none better; on rank 0."""
        self.found = (*self.found, (step, loss))
        self.report({"held_out": [step, loss]})
        if self.job.out and best_of(self.found) == (step, loss):
            try:
                self.best = self.session.save(model, self.job.out, BEST, {STEP: str(step), "held_out_loss": repr(loss)})
            except OptionError as failed:
                self.report({"note": f"the best weights so far, after step {step}, are not kept: {failed}"})

    def _weights(self, rank: Rank, step: int, end: Program | None) -> dict[str, torch.Tensor]:
        """The whole model as it is now, on rank 0."""
        program, state = rank.program, rank.state
        if end is not None:
            program, state = end, self._settled(rank, step, end)
        return gathered_leaves(program, rank.graph, rank.rank, state)

    def _settled(self, rank: Rank, step: int, end: Program) -> State:
        """A copy of this rank's weights, brought together with the others'."""
        session = self.session
        state = apart(rank, end, session)
        work = session.workload(self.job.keyed)
        copy = make_rank(work, end, rank.rank, state, session.transport, first_step=step)
        with Heartbeat(copy, self.report):
            drive(copy, Interval(1), lambda round: False, session.timeout)
        return state

    @contextmanager
    def _unchanged(self, state: State, program: Program) -> Iterator[None]:
        """A context that leaves generators as they are, what counts as sent, and weights that lie apart where they
        lie."""
        session = self.session
        drawn, sent = random_states(session.device), session.transport.sent
        flats = [state.parameter[bucket.name] for bucket, _ in parted(program) if bucket.name in state.parameter]
        away = [flat for flat in flats if not is_allocated(flat)]
        try:
            yield
        finally:
            for flat in away:
                release(flat)
            session.transport.sent = sent
            set_random_states(drawn, session.device)


def apart(rank: Rank, end: Program, session: Session) -> State:
    """A state of a rank for a Program that brings replicas together: copies of its weights and buffers, and what its
    agreement keeps, of which such a Program only reads."""
    state, graph = rank.state, rank.graph
    there = {name: leaf for name, leaf in state.leaves.items() if is_allocated(leaf)}
    named = {p.name for p in graph.parameters} | {b.name for b in graph.buffers}
    values = there if named <= there.keys() else {**session.first(state), **there}
    fresh = make_state(graph, end, end.role_of[rank.rank], session.task, values, session.device, rank.rank)
    for name, flat in fresh.parameter.items():
        if name in state.parameter and is_allocated(state.parameter[name]):
            flat.copy_(state.parameter[name])
    fresh.kept.update({place: kept for place, kept in state.kept.items() if place in fresh.kept})
    return fresh


def _step_of(path: Path) -> int:
    """The step of a file of best weights; -1 where that is not known."""
    try:
        with safe_open(path, "pt") as file:
            return int((file.metadata() or {})[STEP])
    except (SafetensorError, OSError, KeyError, ValueError):
        return -1
