"""What part of a step each worker's round makes, and whether all go through their rounds together."""

from __future__ import annotations

from partita.program.instruction import Apply, Load
from partita.program.program import Program, Role


def lockstep(program: Program) -> bool:
    """Whether nothing enters weights as it comes: all ranks then take as long for a round in the steady state."""
    return not any(isinstance(i.act, Apply) for _, i in program.instructions())


def shares_of(program: Program, role: Role) -> dict[int, float]:
    """Rank -> minibatches' worth of samples that a round of it takes and that are applied, of what is dropped the
    average; empty for a role that takes none."""
    loads = [i.act for i in role.instructions if isinstance(i.act, Load) and i.act.fetch]
    applies = [i.act for _, i in program.instructions() if isinstance(i.act, Apply) and i.act.drop]
    applied = applies[0].need / len({act.source for act in applies}) if applies else 1.0
    taken = applied * sum(load.count for load in loads) / program.batch
    return dict.fromkeys(role.ranks, taken) if loads else {}
