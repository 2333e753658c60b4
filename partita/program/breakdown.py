"""Where a step's time goes, read from spans, whoever made them."""

from __future__ import annotations

from collections.abc import Sequence

from partita.program.instruction import Collective, Compute, Load, Send
from partita.program.program import Program
from partita.program.timeline import Breakdown, Span
from partita.units import Seconds


def breakdown(program: Program, spans: Sequence[Span], step: Seconds, rounds: int) -> Breakdown:
    """What the first worker's compute lane did in a step: its gaps are exposed communication or waiting for data."""
    role = next((role for role in program.roles if role.keeps == "model"), program.roles[0])
    rank, by_name = role.ranks[0], role.on_name
    spent = {"forward": 0.0, "backward": 0.0, "optimizer": 0.0, "data": 0.0}
    for span in spans:
        if span.rank != rank or span.lane != "compute":
            continue
        act = by_name[span.name].act
        kind = "optimizer" if span.kind in ("Update", "Clip", "Norm", "Settle", "Scale", "Mix") else "backward"
        if isinstance(act, Compute) and act.segment.startswith("F"):
            kind = "forward"
        if isinstance(act, Load):
            kind = "data"
        spent[kind] += (span.end - span.start) / (rounds * max(program.steps, 1))
    gap = max(step - sum(spent.values()), 0.0)
    talks = any(isinstance(i.act, Collective | Send) for i in role.instructions)
    return Breakdown(**spent, exposed_communication=gap if talks else 0.0, idle=0.0 if talks else gap)
