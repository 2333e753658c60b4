"""What a rank says of itself while it runs, and what is told of that: how far a run is, its loss, the time it takes.

rank 0    {"step": 40, "loss": [1.10, 0]}               {"step": 90, "loss": [0.98, 0]}       twice a second, each
rank 1           {"step": 41, "loss": [1.12, 0]}            {"step": 90, "loss": [0.99, 0]}   for itself

told      ddp: step 91 of 3000, loss 2.1, held out 2.3, 10 ms a step, 29 s left
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from partita.checkpoints.losses import Row, totals
from partita.runs.session import EVERY, Report
from partita.runtime.device import CPU
from partita.runtime.rank import Rank
from partita.telling import Note
from partita.units import Seconds, show_duration, show_seconds

PACE_INTERVAL: Final[Seconds] = 10.0  # over which a pace is taken, at least
RECENT: Final[Seconds] = 10.0  # over which the seconds of a step are taken that are told, or over two reports
Part = tuple[float, float]


@dataclass
class Reporter:
    """Called at each instance of a `rank` whose rounds begin with `begins`. It tells the driver from round `first` on
    that spans are recorded, and reports from time to time the current step, the rank's part of recent losses and how
    long its own work takes.

    `taken` are the losses that the driver has taken from the rank; the first `looked` of them were looked at. `told` is
    the time of the last report, `paced` and `since` are the time and round of the last pace. Steps before `ended` have
    had their losses in a report; `part` is what the last one had."""

    rank: Rank
    begins: int
    first: int
    report: Report
    taken: list[Row] = field(default_factory=list)
    told: Seconds = 0.0
    paced: Seconds = 0.0
    since: int = 0
    part: Part = (0.0, 0.0)

    def __post_init__(self) -> None:
        self.ended, self.looked = self.rank.step(self.begins, 0), len(self.taken)

    def __call__(self, round: int) -> bool:
        now = time.perf_counter()
        if now - self.told > EVERY:
            self.told = now
            self.report({"step": self.rank.step(round, 0)} | self._loss() | self._pace(now, round))
        return round >= self.first

    def _loss(self) -> dict[str, Any]:
        """This rank's part of a step's loss and that part's weight, each a mean over the steps that have ended since
        the last report. Nothing before a round has ended, nor on cards, for which the host would have to wait."""
        rank, start = self.rank, self.ended
        self.ended = max(start, rank.step(self.begins + len(rank.ends), 0))
        if rank.device != CPU or self.ended == start:
            return {}
        rows = [(loss, weight) for step, loss, weight in self.taken[self.looked :] if step >= start]
        self.looked = len(self.taken)
        for step in range(start, self.ended):
            if (loss := rank.losses.get(step)) is not None:
                rows.append((float(loss), float(rank.weights.get(step, 0.0))))
        if rows:
            self.part = sum(loss for loss, _ in rows) / len(rows), sum(weight for _, weight in rows) / len(rows)
        return {"loss": self.part}

    def _pace(self, now: Seconds, round: int) -> dict[str, Any]:
        """Seconds a round, over two rounds or more, and what a rank's own work took in the best of them."""
        lasted, rounds = now - self.paced, round - self.since
        if self.paced and (lasted < PACE_INTERVAL or rounds < 2):
            return {}
        taken, first, self.paced, self.since = self.rank.pace.taken(), not self.paced, now, round
        return {} if first else {"pace": {"round": lasted / rounds, "taken": taken}}


@dataclass
class Progress:
    """How far a run of `steps` steps of `plan` on `ranks` ranks is; mutable, private to one run.

    `parts` has what each rank has said last of its losses, `marks` the steps that rank 0 has said of late, and when;
    `held_out` is the loss of the last evaluation, None before."""

    plan: str = ""
    steps: int = 0
    ranks: int = 0
    parts: dict[int, Part] = field(default_factory=dict)
    marks: deque[tuple[Seconds, int]] = field(default_factory=deque)
    held_out: float | None = None

    def hear(self, rank: int, event: Mapping[str, Any], now: Seconds) -> str:
        """Take in what a rank reports at the time `now`. Returns a sentence, "" where there is none to tell; of a
        held-out loss a Note, for the next step must not take its place."""
        if "loss" in event:
            self.take_in(rank, event["loss"])
        if "step" in event:
            return self._far(event["step"], now) if rank == 0 else ""
        if "saving" in event:
            return f"{self.plan}: writing the checkpoint of step {event['saving']}"
        if "held_out" in event:
            step, self.held_out = event["held_out"]
            return Note(f"{self.plan}: held-out loss {self.held_out:.4g} after step {step}")
        if "evaluating" in event:
            return f"{self.plan}: computing the held-out loss after step {event['evaluating']}"
        if "evaluated" in event:
            return "{}: held-out loss of {} of {} samples".format(self.plan, *event["evaluated"])
        return ""

    def take_in(self, rank: int, part: Sequence[float]) -> None:
        """Take in what a rank says of its losses."""
        loss, weight = part
        self.parts[rank] = loss, weight

    def _far(self, step: int, now: Seconds) -> str:
        told = [f"{self.plan}: step {min(step + 1, self.steps)} of {self.steps}"]
        if len(self.parts) == self.ranks:
            told.append(f"loss {totals((0, *part) for part in self.parts.values())[0]:.4g}")
        if self.held_out is not None:
            told.append(f"held out {self.held_out:.4g}")
        if each := self._each(step, now):
            told += [f"{show_seconds(each)} a step", f"{show_duration(max(self.steps - step, 0) * each)} left"]
        return ", ".join(told)

    def _each(self, step: int, now: Seconds) -> Seconds:
        """Seconds of a recent step; 0 if they are not known yet."""
        if not self.marks or step > self.marks[-1][1]:
            self.marks.append((now, step))
        while len(self.marks) > 2 and now - self.marks[1][0] > RECENT:
            self.marks.popleft()
        (begun, first), (ended, last) = self.marks[0], self.marks[-1]
        return (ended - begun) / (last - first) if last > first else 0.0
