"""What an instruction has in flight while it holds its lane: with whom, and how many bytes."""

from __future__ import annotations

from partita.program.instruction import Collective, Instruction, Receive, Send
from partita.program.program import Program, Role
from partita.units import Bytes


def in_flight(program: Program, role: Role, one: Instruction) -> Bytes:
    """Bytes of the instruction's own message, or of the message whose end it waits for (`until`)."""
    act = role.on_name[one.until].act if one.until else one.act
    return program.payload(act) if isinstance(act, Collective | Send | Receive) else 0


def peers_of(act: Send | Receive) -> tuple[int, ...]:
    """To whom, or from whom, each rank of a role has a message; one rank for all, or one for each."""
    return act.to if isinstance(act, Send) else act.source
