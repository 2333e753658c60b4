"""A step's time divided by what it was spent on, read from measured or simulated spans."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from partita.program.instruction import Collective, Load, Send
from partita.program.program import Program, Role
from partita.program.timeline import Breakdown, Span
from partita.units import Seconds

PARTS: Final = {
    "Load": "data", "Pack": "backward", "Free": "backward", "Encode": "codec", "Decode": "codec",
    "Combine": "optimizer", "Scale": "optimizer", "Mix": "optimizer", "Norm": "optimizer", "Clip": "optimizer",
    "Update": "optimizer", "Apply": "optimizer", "Snapshot": "optimizer", "Settle": "optimizer",
    "Collective": "messages", "Send": "messages", "Receive": "messages", "Mark": "other",
}  # fmt: skip
KINDS: Final = frozenset({"Compute", *PARTS})  # of a Span


def part_of(name: str, kind: str) -> str:
    """What an instruction's time is spent on, by its name and the type of its act: a field of Breakdown, `messages` or
    `other`."""
    if kind == "Compute":
        return "forward" if name.startswith("F") else "backward"
    return PARTS[kind]


def breakdown(program: Program, spans: Sequence[Span], step: Seconds, rounds: int) -> Breakdown:
    """The Breakdown of a step of `step` seconds, from the spans of `rounds` rounds on the first worker's leading lane.

    A gap counts as data if a Load ends it, otherwise as exposed communication if the worker communicates at all,
    otherwise as idle. What that lane itself sends or receives is such a gap, and what it loads is data. Rounds that
    took longer than a step in the mean count by their shares, so that all parts together are the step.
    """
    role = next((role for role in program.roles if role.keeps == "model"), program.roles[0])
    mine = [span for span in spans if span.rank == role.ranks[0]]
    line = sorted((span for span in mine if span.lane == role.leading), key=lambda span: span.start)
    spent = dict.fromkeys(("forward", "backward", "optimizer", "codec", "data"), 0.0)
    for span in line:
        if (part := part_of(span.name, span.kind)) in spent:
            spent[part] += span.end - span.start
    steps = max(program.steps, 1)
    lasted = (line[-1].end - line[0].start) / (rounds * steps) if line else 0.0
    share = step / lasted if lasted > step else 1.0
    parts = {part: share * seconds / (rounds * steps) for part, seconds in spent.items()}
    parts["data"] += share * _waited(role, mine, line) / (max(rounds - 1, 1) * steps)
    gap = max(step - sum(parts.values()), 0.0)
    talks = any(isinstance(i.act, Collective | Send) for i in role.instructions)
    return Breakdown(**parts, exposed_communication=gap if talks else 0.0, idle=0.0 if talks else gap)


def _waited(role: Role, mine: Sequence[Span], line: Sequence[Span]) -> Seconds:
    """Seconds that the lane waited for samples, in all rounds but the first."""
    loaded = {(span.name, span.round): span.end for span in mine if span.kind == Load.__name__}
    waited = 0.0
    for before, span in pairwise(line):
        if span.round > line[0].round:
            after = role.on_name[span.name].after
            ends = [loaded.get((one.name, span.round - one.rounds), 0.0) for one in after]
            waited += max(min(max(ends, default=0.0), span.start) - before.end, 0.0)
    return waited
