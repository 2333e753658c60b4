"""What a rank's instructions move, and what that costs computing beside them, as it was measured.

A sum, a hop and a message each go slower beside computing by a factor of their own, and all of them beside that of
others on the same core by a message's; each byte, and each second that another lane codes, takes computing so many
core-seconds longer. When that happens, `overlap` finds out.
"""

from __future__ import annotations

from dataclasses import dataclass

from partita.cost.costs import Costs
from partita.cost.demand import demand_of, hop_parts
from partita.cost.wiring import PASSES, circle_of
from partita.program.instruction import Act, Collective, Decode, Encode, Receive, Send
from partita.program.program import Program
from partita.program.space import Kind, Space
from partita.units import Seconds
from partita.wire.algorithms import by_messages, course
from partita.wire.loads import loads_of


@dataclass(frozen=True, slots=True)
class Move:
    """The instruction at a `place` of a role that moves something, or codes in a lane of its own: the `factor` by which
    it takes longer beside computing, and that beside computing of `others` on its core alone; the core-seconds that
    computing takes longer beside all of it, what is sent and received and what is coded; of a sum what it takes longer,
    and what core-seconds more, right `behind` another."""

    place: int
    factor: float
    disturbance: Seconds
    coding: Seconds = 0.0
    behind: tuple[Seconds, Seconds] = (0.0, 0.0)
    others: float = 1.0


Moves = dict[str, list[Move]]


def moves_of(program: Program, costs: Costs) -> Moves:
    """By role, what moves something or codes, and has to do with what computes beside it."""
    found: Moves = {}
    if costs.wiring.undisturbed:
        return found
    for role in program.roles:
        for place, i in enumerate(role.instructions):
            coding = costs.wiring.coding * (coded(program, i.act, costs) if i.lane != role.leading else 0.0)
            disturbance, factor, behind, others = 0.0, 1.0, (0.0, 0.0), 1.0
            if isinstance(i.act, Collective | Send | Receive):
                disturbance = costs.wiring.disturbance * program.payload(i.act) * _passes(i.act)
                factor, others = _slowdowns(program, i.act, costs)
            if isinstance(i.act, Collective) and i.act.kind is Kind.ALL_REDUCE and not by_messages(i.act):
                circle = circle_of(i.act.groups[0], costs.cluster)
                behind = costs.wiring.behind(program.payload(i.act), circle)
            if max(factor, others) > 1 or disturbance > 0 or coding > 0 or any(behind):
                found.setdefault(role.name, []).append(Move(place, factor, disturbance, coding, behind, others))
    return found


def coded(program: Program, act: Act, costs: Costs) -> Seconds:
    """Core-seconds that a rank codes for an act."""
    if isinstance(act, Encode | Decode):
        return demand_of(costs, program, act).core
    if not isinstance(act, Collective) or act.codec is None:
        return 0.0
    ranks = len(act.groups[0])
    before, _, _, after = hop_parts(costs, program, act, ranks)
    return float((before + after).sum()) / ranks


def _slowdowns(program: Program, act: Collective | Send | Receive, costs: Costs) -> tuple[float, float]:
    """The factors by which it takes longer beside its rank's computing, and beside others' alone. A collective that
    goes by messages is as slow as these."""
    size, wiring = program.payload(act), costs.wiring
    if not isinstance(act, Collective):
        own = 1.0 if act.space is Space.VALUE else wiring.slowdown(size, "message")  # who waits computes nothing
        return own, wiring.slowdown(size, "others")
    ranks = len(act.groups[0])
    if not by_messages(act):
        parts = act.kind in (Kind.REDUCE_SCATTER, Kind.ALL_GATHER)
        own = wiring.slowdown(size, "gather" if parts else "sum")
        return own, wiring.slowdown(size // ranks, "others")
    schedule, edges = course(program, act, ranks)
    hops = loads_of(schedule, *program.extent(act, ranks), act.codec, act.density, edges)
    most = int(max((hop.size / max(hop.messages, 1) for hop in hops), default=0.0))
    return wiring.slowdown(most, "hop"), wiring.slowdown(most, "others")


def _passes(act: Collective | Send | Receive) -> float:
    """How many times a rank sends or receives the bytes of an instruction; a collective is a ring."""
    if not isinstance(act, Collective):
        return 1.0
    return 2 * PASSES.get(act.kind, 2) * (1 - 1 / len(act.groups[0]))
