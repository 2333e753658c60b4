"""The fraction of a step that a round of each worker makes, and whether all ranks go through rounds in lockstep."""

from __future__ import annotations

from partita.program.instruction import Apply, Load
from partita.program.program import Program, Role


def lockstep(program: Program) -> bool:
    """Whether no contribution is applied as it arrives: then all ranks take the same time for a round in the steady
    state, but for those that wait for nobody and so run ahead; a step is that of the slowest."""
    return not program.acts(Apply)


def shares_of(program: Program, role: Role) -> dict[int, float]:
    """Rank -> minibatches' worth of samples in a round of it that are applied; if late ones are dropped, on average.
    Empty for a role that reads no samples."""
    loads = [act for act in role.acts(Load) if act.fetch]
    applies = [act for act in program.acts(Apply) if act.drop]
    applied = applies[0].need / len({act.source for act in applies}) if applies else 1.0
    taken = applied * sum(load.count for load in loads) / program.batch
    return dict.fromkeys(role.ranks, taken) if loads else {}
