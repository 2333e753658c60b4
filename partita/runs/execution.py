"""One run of a plan on one rank, from its first step or from a checkpoint to its end or to a signal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from partita.checkpoints.checkpoint import SavePolicy, place_of
from partita.checkpoints.holding import held
from partita.checkpoints.losses import Losses, LossFile, Row, begun_in, losses_of, taken_rows
from partita.checkpoints.manifest import DamagedCheckpoint, Moment, manifest_of
from partita.checkpoints.restore import Checkpoint, changes_since, lost, open_checkpoint, reading
from partita.checkpoints.saving import save_together
from partita.checkpoints.settings import sentences
from partita.errors import RunError
from partita.plan.plan import Plan
from partita.program.absence import entered
from partita.program.held_out import owed
from partita.program.settled import settling
from partita.runs.admission import Admission
from partita.runs.checksums import ChecksumReporter
from partita.runs.divergence import find_divergence
from partita.runs.evaluations import Evaluations
from partita.runs.failover import Failover
from partita.runs.halt import Halt
from partita.runs.heap import set_aside
from partita.runs.heartbeat import Heartbeat, at_work
from partita.runs.rejoin import Rejoin
from partita.runs.reporting import Reporter
from partita.runs.session import EVERY, Job, Report, Session
from partita.runtime.brake import Brake, RoundWait
from partita.runtime.leg import Interval, Leg, intervals, left
from partita.runtime.rank import Rank
from partita.runtime.state import State
from partita.runtime.worker import drive
from partita.units import Bytes, Seconds


@dataclass
class Execution:
    """The state of one run on one rank.

    `earlier` are the losses of steps before a resume, which took `away` seconds, `losses` this rank's parts of those
    since, of which the first `noted` are in a checkpoint, and so in the `file` of losses; `begun` is the time at which
    the run's first step would have begun on this process's clock, had it never been interrupted, so that what is set up
    before it is no training; `idle` are the core-seconds that the process had used by then.
    """

    session: Session
    job: Job
    report: Report
    saved: Checkpoint | None
    away: Seconds
    brake: Brake = field(default_factory=Brake)
    step: int = 0
    state: State | None = None
    earlier: Losses = field(default_factory=list)
    losses: list[Row] = field(default_factory=list)
    noted: int = 0
    file: LossFile = field(init=False)
    evaluations: Evaluations = field(init=False)
    ends: dict[int, Seconds] = field(default_factory=dict)
    cores: dict[int, Seconds] = field(default_factory=dict)
    begun: Seconds = field(default_factory=time.perf_counter)
    idle: Seconds = field(default_factory=time.process_time)
    spans: list[dict[str, Any]] = field(default_factory=list)
    before: tuple[Bytes, int] = (0, 0)  # what was sent before the last phase, and its first step
    sent: Bytes = 0  # in a step of the last phase: without what brings replicas together at the end
    stopped: bool = False
    over: bool = False  # no evaluation was better for as long as the run has patience
    recovery: Rejoin | Failover | None = None
    kept: Path = Path()  # the last checkpoint

    def __post_init__(self) -> None:
        self.file, self.evaluations = begun_in(self.job.out), Evaluations(self.session, self.job, self.report)

    def go(self) -> None:
        """Carry out the run, leg by leg, from its start to its end."""
        session, job = self.session, self.job
        since, flying = (self.saved.manifest.step, self.saved.manifest.flying) if self.saved else (0, 0)
        self.kept = Path(job.resume)
        if self.saved:
            self.evaluations.go_on(self.saved.manifest.evaluations)
        ends = since if self.evaluations.over else job.steps
        parts = left(session.graph, job.plan, session.cluster, ends, since, flying)
        self.step = since
        if not job.back:
            for leg in parts:
                session.join(leg.program)
        spare, role_of = frozenset(job.spare), parts[0].program.role_of
        if any(role_of[rank].keeps == "server" for rank in spare):
            self.recovery = Failover(session, spare, parts[0], job.number)
        elif spare:
            self.recovery = Rejoin(session, spare, parts, job.number, away={*job.absent})
        entry = self.recovery.enter() if isinstance(self.recovery, Rejoin) and job.back else Admission(0, 0)
        phase: Plan | None = None
        with self.recovery or nullcontext():
            for i, leg in enumerate(parts):
                if self.over and (leg.program.steps or leg.plan != phase):
                    continue
                leg = replace(leg, step=self.step) if self.over else leg
                if entry.leg <= i and session.rank < leg.program.size and not self.stopped:
                    at = entry.round if entry.leg == i else 0
                    if anew := leg.plan != phase:
                        phase, self.before = leg.plan, (self._sent(), leg.step + at * leg.program.steps)
                    self._carry_out(leg, i, at, anew=anew, later=parts[i + 1 :])

    def _carry_out(self, leg: Leg, number: int, at: int, *, anew: bool, later: Sequence[Leg]) -> None:
        """Carry out the `number`-th leg, with which a phase may begin `anew`; `later` ones follow. A rank that comes
        back enters it at round `at`."""
        saved, self.saved = self.saved, None
        flying = saved.flying(leg.program) if saved else 0
        first = leg.step - flying * leg.program.steps
        rank = self.session.rank_for(leg.program, self.state, first, self.job.keyed, saved, anew=anew)
        rank.brake, self.state = self.brake, rank.state
        if saved and rank.rank == 0:
            task, graph, program = self.session.task, self.session.graph, leg.program
            with reading(saved.path):
                self._find_losses(saved)
                words = [f"{program.name} goes on from another plan: {one}" for one in lost(saved, graph, program)]
                words += sentences(changes_since(saved, task, graph, program))
            for sentence in words:
                self.report({"note": sentence})
        set_aside()
        begun = start = max(flying, at - 1)
        reporter = Reporter(rank, start, flying + leg.rounds - self.job.record, self.report, self.losses)
        if self.session.world > 1 and not self.step and not self.job.back:
            self.hold_together(rank)
        rank.round_ends = ChecksumReporter(rank, self.report)
        if self.recovery:
            self.recovery.begins(rank, number)
        if at:
            self._come_back(rank, at, reporter)
        if not self.ends:
            self.begun, self.idle = time.perf_counter() - self.away, time.process_time()
        if saved and owed(self.evaluations.found, self.step, self.job.evaluate_every):
            self._evaluate(rank, flying, leg, later, reporter)
        todo = [Interval(leg.rounds, at)] if at else self._intervals(leg, flying, later)
        for interval in () if self.over else todo:
            self._drive(rank, interval, reporter)
            round = min(interval.stop, self._braked(rank))
            self._take_in(rank, start, begun, round)
            begun = round
            self.stopped = round < interval.stop
            if interval.keep or self.stopped:
                drained = interval.drain and not self.stopped
                self.keep_checkpoint(rank, round, 0 if drained else min(round, leg.program.drain))
            if interval.evaluate and not self.stopped:
                self._evaluate(rank, round, leg, later, reporter)
            if self.stopped or self.over:
                break
        if self.over:
            self._drive(rank, Interval(begun, begun), reporter)
        if leg.program.steps and leg.plan == self.job.plan:  # of the phase that the result is of
            self.spans = [asdict(span) for span in rank.spans if span.round < begun or not self.over]
            self.sent = (self._sent() - self.before[0]) // max(self.step - self.before[1], 1)

    def _intervals(self, leg: Leg, flying: int, later: Sequence[Leg]) -> Iterator[Interval]:
        last = not any(each.whole for each in later)
        return intervals(leg, flying, self.job.every, last, self.job.evaluate_every)

    def _evaluate(self, rank: Rank, round: int, leg: Leg, later: Sequence[Leg], reporter: Reporter) -> None:
        """Evaluate the weights that `round` will read, which has begun then: a signal ends the run after it. Nothing
        where a signal has ended the run already, or its last step is done, whose loss is that of what the run ends
        with."""
        if self.step == self.job.steps or not self._begins(rank, round):
            return
        self._drive(rank, Interval(round, round, drain=False, ahead=settling(rank.role)), reporter)
        ends = (each.program for each in later if not each.program.steps and each.plan == leg.plan)
        self.evaluations.evaluate(rank, self.step, next(ends, None))
        self.over = self.evaluations.over

    def _begins(self, rank: Rank, round: int) -> bool:
        """Whether a round begins; waits while that is not decided yet."""
        first, stop = rank.step(round, 0), rank.step(round + 1, 0)
        while not self.brake.passes(first, stop):
            if self.brake.over(first):
                return False
            RoundWait(self.brake, first, stop).block(EVERY)
        return True

    def _drive(self, rank: Rank, interval: Interval, reporter: Reporter) -> None:
        """Carry out an interval."""
        if interval.evaluate and self.job.patience:  # its rounds may be the run's last
            reporter.first = interval.stop - self.job.record
            rank.spans[:] = [span for span in rank.spans if span.round >= reporter.first]
        with Heartbeat(rank, self.report):
            drive(rank, interval, reporter, self.session.timeout)

    def _find_losses(self, saved: Checkpoint) -> None:
        """Take in the losses of the steps before a resume, if the run's file still has them."""
        try:
            file, self.earlier = losses_of(saved)
        except DamagedCheckpoint as found:
            self.report({"note": f"{found}; the losses of the steps before {saved.manifest.step} are not known"})
        else:
            self.file = file if file.path == self.file.path else self.file

    def _sent(self) -> Bytes:
        """What this process has sent in this run so far."""
        return self.session.transport.sent

    def _come_back(self, rank: Rank, at: int, reporter: Reporter) -> None:
        """Enter before round `at`, which the others have reached, with the others' weights."""
        assert isinstance(self.recovery, Rejoin)
        rank.board.done = entered(rank.program, rank.rank, at, rank.rank)
        drive(rank, Interval(at, at - 1, drain=False), reporter, self.session.timeout)
        self.recovery.adopt(rank, at)
        self.report({"back": at, "note": f"rank {rank.rank} is back, from step {rank.step(at, 0)} on"})

    def _braked(self, rank: Rank) -> int:
        """The round before which the brake has ended this rank's lanes, if it has."""
        if self.brake.end is None or not rank.program.steps:
            return 2**62
        return max(-(-(self.brake.end - rank.first_step) // rank.program.steps), 0)

    def _take_in(self, rank: Rank, first: int, start: int, stop: int) -> None:
        """Collect the losses and end times of rounds `start` to `stop`, by step; the rank's own first round is
        `first`."""
        for round, (end, core) in zip(range(start, stop), rank.ends[start - first :], strict=False):
            if rank.program.steps:
                at = rank.step(round, rank.program.steps - 1)
                self.ends[at], self.cores[at] = end - self.evaluations.seconds, core - self.evaluations.cores
        self.losses += taken_rows(rank)
        self.step = rank.step(stop, 0)

    def hold_together(self, rank: Rank) -> None:
        """Raises RunError if ranks that must have equal weights do not."""
        divergence = find_divergence(rank, self.step, self.session.rank, rank.program.size)
        if divergence is not None:
            raise RunError(divergence.sentence, rank=divergence.rank, step=self.step)

    def keep_checkpoint(self, rank: Rank, round: int, flying: int) -> None:
        """Write a checkpoint, unless the run has gone no further than the last one."""
        if not self.job.out or self.kept == (place := place_of(self.job.out, self.step)):
            return
        self.hold_together(rank)
        losses = [(at, self._second(at), loss, weight) for at, loss, weight in self.losses[self.noted :]]
        losses = losses if self.file.size else self.earlier + losses
        shard = held(rank, round, flying)
        seconds = time.perf_counter() - self.begun - self.evaluations.seconds
        moment = Moment(self.step, flying, seconds, self.evaluations.found)
        manifest = manifest_of(self.session.workload(self.job.keyed), self.job.plan, rank.program, moment)
        policy = SavePolicy(self.job.out, self.job.every, self.job.keep)
        writing = partial(at_work, self.report, {"saving": self.step})
        failed, self.file = save_together(shard, policy, manifest, rank.rank, writing, self.file, losses)
        if not failed:
            self.kept, self.noted = place, len(self.losses)
        if failed and rank.rank == 0:
            self.report({"note": f"the checkpoint of step {self.step} was not written ({failed}); older ones stay"})

    def _second(self, step: int) -> Seconds:
        return self.ends[step] - self.begun if step in self.ends else 0.0

    def reply(self, since: int) -> dict[str, Any]:
        """This rank's part of the result as plain data; seconds are of rank 0's clock."""
        session, job, state, shift = self.session, self.job, self.state, self.session.offset
        ends = {at: self.begun + second for at, second, _, _ in self.earlier if second} | self.ends
        losses = [(at, loss, weight) for at, _, loss, weight in self.earlier] + self.losses
        leaves = {} if self.stopped else session.leaves(job, state)
        merges = [astuple(merge) for merge in state.ledger.merges] if state else []
        self.state = state = None  # what a step needs beside the weights makes room for the module
        if session.rank == 0 and leaves:
            self.report({"untimed": True})
        model = session.module(leaves) if session.rank == 0 and leaves else None
        weights = session.save(model, job.out) if model and job.out else ""
        final = self._final_loss(model, weights) if model and job.evaluate else None
        return {
            "rank": session.rank,
            "since": since,
            "back": job.back,
            "begun": self.begun + shift,
            "went_on": self.begun + self.away + shift,
            "stopped": self.step if self.stopped else None,
            "ends": [[at, end + shift] for at, end in ends.items()],
            "cores": [[at, core] for at, core in self.cores.items()],
            "idle": self.idle,
            "losses": losses,
            "spans": [span | {"start": span["start"] + shift, "end": span["end"] + shift} for span in self.spans],
            "sent": self.sent,
            "merges": merges,
            "resident": psutil.Process().memory_info().rss,
            "weights": weights,
            "final_loss": final,
            "evaluations": self.evaluations.found,
            "best": self.evaluations.best,
        }

    def _final_loss(self, model: Any, weights: str) -> float | None:
        """The held-out loss of the trained model."""
        loss = self.session.evaluate(model, self.report)
        if loss is not None:
            self.evaluations.end(self.step, loss, weights)
        return loss


def run(session: Session, job: Job, report: Report) -> dict[str, Any]:
    """Carry out a job; returns this rank's part of the result as plain data.

    With `out`, a signal ends the run after the round that the fastest rank is in, with a checkpoint.
    """
    saved = open_checkpoint(Path(job.resume)) if job.resume else None
    away, since = (saved.manifest.seconds, saved.manifest.step) if saved else (0.0, 0)
    session.transport.sent = 0
    execution = Execution(session, job, report, saved, away, Brake(since))
    halt = Halt(execution.brake, session.rank, session.world)
    halts = halt if job.out and not job.back else nullcontext()
    with halts, nullcontext() if job.back else session.together(all_of_them=not job.spare):
        execution.go()
    session.transport.tags.keys.clear()
    session.transport.links.clear()
    session.transport.channels.clear()
    return execution.reply(since) | {"stopped_by": halt.number}
