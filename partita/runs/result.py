"""The result of a run, put together from what its ranks report."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.checkpoints.losses import totals
from partita.program.breakdown import breakdown
from partita.program.held_out import HeldOut
from partita.program.ledger import Merge, step_of
from partita.program.program import Program
from partita.program.shares import lockstep, shares_of
from partita.program.timeline import Span, Timeline
from partita.units import Seconds


class Halted(Exception):
    """A signal has ended the run after `step` steps."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


@dataclass(frozen=True)
class RunResult:
    """One measured run of a plan: its Timeline, (step, seconds since the first one began, loss) of every step, the
    held-out loss after the last one, and the path of the weights; `evaluations` are (steps taken, held-out loss) on the
    way, where these were asked for, `best` the path of the weights with the least."""

    timeline: Timeline
    loss: tuple[tuple[int, Seconds, float], ...]
    final_loss: float
    weights: str
    evaluations: HeldOut = ()
    best: str = ""


def result_of(program: Program, replies: list[dict[str, Any]], discard: int) -> RunResult:
    """The result from the ranks' replies; the first `discard` steps do not count for the seconds of a step. Raises
    Halted."""
    for reply in replies:
        if reply["stopped"] is not None:
            raise Halted(reply["stopped"])
    replies = sorted((r for r in replies if r["rank"] < program.size), key=lambda r: int(r["rank"]))
    last = max((int(step) for step, _ in replies[0]["ends"]), default=0)
    discard = min(discard, max(last - replies[0]["since"], 0))  # a run may end early
    spans = tuple(sorted((Span(**s) for r in replies for s in r["spans"]), key=lambda s: (s.rank, s.lane, s.start)))
    rates = [
        _rate(dict(map(tuple, r["ends"])), r["since"], r["since"] + discard, r["went_on"])
        for r in replies
        if not r.get("back")
    ]
    total = totals(row for reply in replies for row in reply["losses"])
    ends = {int(step): float(end) - replies[0]["begun"] for step, end in replies[0]["ends"]}
    loss = tuple(zip(total, _when(ends, list(total)), total.values(), strict=True))
    kept = len({span.round for span in spans})
    step = float(np.max(rates)) if lockstep(program) else _applied(program, replies, discard)
    timeline = Timeline(
        program.name, "measured", step, program.batch, spans,
        resident=tuple(r["resident"] for r in replies),
        cores=tuple(_rate(dict(map(tuple, r["cores"])), r["since"], r["since"] + discard, r["idle"]) for r in replies),
        wire_sent=tuple(r["sent"] for r in replies),
        breakdown=breakdown(program, spans, step, max(kept, 1)),
        ledger=tuple(Merge(*merge) for r in replies for merge in r["merges"]), dtype=program.dtype,
    )  # fmt: skip
    final = next((r["final_loss"] for r in replies if r["final_loss"] is not None), float("nan"))
    weights = next((r["weights"] for r in replies if r["weights"]), "")
    found = tuple((int(at), float(value)) for at, value in replies[0].get("evaluations", ()))
    return RunResult(timeline, loss, final, weights, found, replies[0].get("best", ""))


def _applied(program: Program, replies: list[dict[str, Any]], discard: int) -> Seconds:
    """Seconds of a step if workers go at their own pace, over the workers that were there all the time."""
    all_the_time = {reply["rank"]: reply for reply in replies if not reply.get("back")}
    shares = {rank: share for role in program.roles for rank, share in shares_of(program, role).items()}
    shares = {rank: share for rank, share in shares.items() if rank in all_the_time}
    ends = [sorted(float(end) for _, end in all_the_time[rank]["ends"]) for rank in shares]
    return step_of(ends, list(shares.values()), max(discard // program.steps, 1))


def _when(ends: dict[int, Seconds], steps: list[int]) -> list[Seconds]:
    """The end of the round that contains each step: only the last step of a round has a time."""
    last = sorted(ends)
    return [ends[last[min(bisect_left(last, step), len(last) - 1)]] for step in steps]


def _rate(ends: dict[int, float], since: int, discard: int, begun: Seconds) -> Seconds:
    """Seconds of a step, from the end of step `discard` - 1 to the last end, of a run that continued from step
    `since` at the time `begun`. NaN if it took no step."""
    own = {step: end for step, end in ends.items() if step >= since}
    last = max(own, default=-1)
    first = max((step for step in own if step < discard), default=since - 1)
    return (own[last] - own.get(first, begun)) / (last - first) if last > first else float("nan")
