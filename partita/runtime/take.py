"""What the ranks of a run report, put together."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from partita.program.breakdown import breakdown
from partita.program.program import Program
from partita.program.timeline import Span, Timeline
from partita.runtime.losses import totals
from partita.units import Seconds


@dataclass(frozen=True)
class Take:
    """One measured run of a plan: its Timeline, (step, seconds, loss) of every step, and the loss after the last."""

    timeline: Timeline
    loss: tuple[tuple[int, Seconds, float], ...]
    final_loss: float
    weights: str


def take_of(program: Program, replies: list[dict[str, Any]], discard: int) -> Take:
    """What the ranks reported, put together; the first `discard` steps do not count for the step's seconds."""
    replies = sorted((r for r in replies if r["ends"]), key=lambda r: int(r["rank"]))
    spans = tuple(sorted((Span(**s) for r in replies for s in r["spans"]), key=lambda s: (s.rank, s.lane, s.start)))
    rates = [_rate(dict(map(tuple, r["ends"])), discard) for r in replies]
    total = totals(row for reply in replies for row in reply["losses"])
    loss = tuple((step, _when(replies[0]["ends"], step), value) for step, value in total.items())
    step, kept = sum(rates) / len(rates), len({span.round for span in spans})
    timeline = Timeline(
        program.name, "measured", step, program.batch, spans,
        resident=tuple(r["resident"] for r in replies),
        cores=tuple(_rate(dict(map(tuple, r["cores"])), discard) for r in replies),
        wire_sent=tuple(r["sent"] // r["steps"] for r in replies),
        breakdown=breakdown(program, spans, step, max(kept, 1)),
    )  # fmt: skip
    final = next((r["final_loss"] for r in replies if r["final_loss"] is not None), float("nan"))
    return Take(timeline, loss, final, next((r["weights"] for r in replies if r["weights"]), ""))


def _when(ends: list[list[float]], step: int) -> Seconds:
    """When the round ended that holds the step: only its last step has a time of its own."""
    return next((float(end) for at, end in ends if at >= step), float(ends[-1][1]))


def _rate(ends: dict[int, float], discard: int) -> Seconds:
    """Seconds a step from the end of the last discarded step (the beginning where there is none) to the last end."""
    last = max(ends)
    first = max((step for step in ends if step < discard), default=-1)
    return (ends[last] - ends.get(first, 0.0)) / (last - first)


def gather_reports(report: dict[str, Any], rank: int, world: int) -> list[dict[str, Any]]:
    """Every rank's report on rank 0, as JSON in byte tensors (nothing is unpickled); empty on the others."""
    text = torch.frombuffer(bytearray(json.dumps(report).encode()), dtype=torch.uint8)
    if rank:
        dist.send(torch.tensor([len(text)]), 0)
        dist.send(text, 0)
        return []
    reports = [report]
    for peer in range(1, world):
        length = torch.zeros(1, dtype=torch.int64)
        dist.recv(length, peer)
        body = torch.zeros(int(length), dtype=torch.uint8)
        dist.recv(body, peer)
        reports.append(json.loads(bytes(body.tolist())))
    return reports
