"""A comparison of nine plans by hand, with everything that a page can show."""

from __future__ import annotations

from dataclasses import replace
from math import exp, sin

from partita.program.timeline import Breakdown, Span, Timeline
from partita.report.comparison import Comparison, Curve, Row
from partita.report.environment import Environment
from tests.small import cluster_of

RANKS = 4
WHY = "stages need <b>4</b> cuts & this model has </script> 2"
PLANS = (  # name, class, measured step, predicted over measured, memory, bytes, loss's rate
    ("single", "exact", 0.0318, 1.03, 6.76, 0.0, 1.0),
    ("ddp", "exact", 0.0228, 0.94, 4.12, 1.11, 1.0),
    ("ps_sync", "exact", 0.0398, 1.19, 4.45, 2.22, 1.0),
    ("pipe_sgd(staleness=1)", "delayed", 0.0202, 0.99, 4.86, 1.11, 0.93),
    ("local_sgd(period=4)", "consensus", 0.0149, 1.16, 3.39, 0.28, 0.88),
    ("zero3(bucket_bytes=1048576)", "exact", 0.0285, 0.97, 2.05, 1.66, 1.0),
    ("ddp(codec=onebit)", "lossy", 0.0211, 1.08, 4.6, 0.06, 0.9),
    ("ssp(staleness=3)", "racy", 0.0192, 0.81, 4.5, 2.2, 0.8),
)


def nine(repeats: int = 3, rounds: int = 2, instructions: int = 4) -> Comparison:
    """Eight plans that ran, `repeats` times each, and one that was refused."""
    rows = [_row(i, repeats, rounds, instructions) for i in range(len(PLANS))]
    rows.insert(6, Row("gpipe(<script>alert(1)</script>)", error=WHY))
    return Comparison(
        tuple(rows), "bytes-gpt <&> \u2028", cluster_of(RANKS),
        ("network namespaces are refused here, so devices are plain loopback processes without processor quotas",),
        Environment("partita compare bytes-gpt --cluster lab-4x1g --plans 'ddp,pipe_sgd(staleness=1)' --report o.html",
                    "2026-11-21 09:30 UTC", "AMD EPYC, 2 cores, 23.5 GiB memory", "Linux 6.1",
                    (("python", "3.11.7"), ("torch", "2.13.0")), "0123456789ab"),
    )  # fmt: skip


def _row(place: int, repeats: int, rounds: int, instructions: int) -> Row:
    plan, semantics, step, off, memory, sent, rate = PLANS[place]
    peaks = tuple(int((memory + 0.05 * rank) * 2**20) for rank in range(RANKS))
    sends = tuple(int(sent * 2**20) for _ in range(RANKS))
    ring = tuple((rank, (rank + 1) % RANKS, sends[rank]) for rank in range(RANKS) if sent)
    measured = Timeline(
        plan, "measured", step, 64, _spans(step, rounds, instructions, 100.0 + place, bool(sent), 1.0), memory=peaks,
        wire_sent=sends, breakdown=_breakdown(step, place), n=repeats, low=step * 0.97, high=step * 1.04,
    )  # fmt: skip
    guess = step * off
    predicted = replace(
        measured, origin="simulated", step_seconds=guess, n=1, low=0.0, high=0.0, traffic=ring,
        spans=_spans(guess, rounds, instructions, 4 * guess, bool(sent), 0.0), breakdown=_breakdown(guess, place),
        memory=tuple(int(size * 0.97) for size in peaks),
        memory_over_time=_live(guess, rounds, peaks) if place % 2 or place == 4 else (),
        memory_parts=_uses(_live(guess, rounds, peaks)) if place == 4 else (),
    )  # fmt: skip
    losses = tuple(_loss(step, rate, repeat) for repeat in range(repeats))
    naive = {"sum": step * (1.2 + 0.1 * place), "max": step * (0.6 + 0.03 * place)}
    return Row(plan, predicted, measured, naive, losses[0], losses[0][30][1], losses[0][-1][2], "", semantics, losses)


def _breakdown(step: float, place: int) -> Breakdown:
    parts = (0.2, 0.35, 0.08, 0.06 if place == 6 else 0.0, 0.04, 0.2, 0.0)
    return Breakdown(*(step * part for part in (*parts[:6], 1 - sum(parts))))


def _spans(step: float, rounds: int, instructions: int, zero: float, talks: bool, jitter: float) -> tuple[Span, ...]:
    """Load, forward, backward in `instructions` parts, each sent while the next is computed, updates."""
    found, part = [], 0.5 / instructions
    for rank in range(RANKS):
        for t in range(rounds):
            at = zero + t * step + 0.01 * step * jitter * sin(rank)

            def add(lane: str, name: str, kind: str, start: float, length: float, at: float = at, t: int = t) -> None:
                found.append(Span(rank, lane, name, kind, 7 + t, at + start * step, at + (start + length) * step))  # noqa: B023

            add("compute", "load", "Load", 0.0, 0.04)
            add("compute", "F0", "Compute", 0.04, 0.2)
            for i in range(instructions):
                add("compute", f"B{i}", "Compute", 0.25 + i * part, part * 0.85)
                add("compute", f"P{i}", "Pack", 0.25 + (i + 0.86) * part, part * 0.1)
                if talks:
                    add("wire", f"A{i}", "Collective", 0.25 + (i + 1) * part, part * 0.9)
                add("compute", f"U{i}", "Update", 0.9 + i * 0.09 / instructions, 0.08 / instructions)
    return tuple(sorted(found, key=lambda span: (span.rank, span.lane, span.start)))


def _live(step: float, rounds: int, peaks: tuple[int, ...]) -> tuple[tuple[tuple[float, int], ...], ...]:
    def at(i: int, peak: int) -> tuple[float, int]:
        phase = i % 40 / 40
        return (4 + i / 40) * step, int(peak * (0.45 + 0.55 * max(0.0, 1 - abs(phase - 0.45) * 2.2)))

    return tuple(tuple(at(i, peak) for i in range(40 * rounds)) for peak in peaks)


def _uses(live: tuple[tuple[tuple[float, int], ...], ...]) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """A third stays, the rest is activations and, on their way, gradients."""

    def at(size: int, stays: int) -> tuple[int, ...]:
        moving = size - stays
        return (stays // 2, stays - stays // 2, 0, moving // 4, moving - moving // 4, 0, 0)

    return tuple(tuple(at(size, min(s for _, s in series) // 3) for _, size in series) for series in live)


def _loss(step: float, rate: float, repeat: int) -> Curve:
    def at(i: int) -> float:
        return 0.9 + 1.9 * exp(-rate * i / 22) + 0.05 * sin(i * 2.3 + repeat) + 0.02 * repeat

    return tuple((i, (i + 1) * step * (1 + 0.02 * repeat), at(i)) for i in range(60))
