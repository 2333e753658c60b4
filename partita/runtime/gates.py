"""Gates of a running rank: who goes through, and when."""

from __future__ import annotations

from collections.abc import Callable

from partita.program.gate import opens
from partita.program.instruction import Instruction
from partita.runtime.rank import Rank

Arrived = Callable[[Rank, Instruction, int], bool]


def goes_through(rank: Rank, instruction: Instruction, round: int, arrived: Arrived) -> bool:
    """Whether an instance whose predecessors are done is let through its gate; `arrived` says of others whether theirs
    are done. Who has no instance left, or is away, is not waited for."""
    board, gate = rank.board, instruction.gate
    if gate is None:
        return True
    with board.changed:
        at = {name: max(board.passed.get(name, 0), board.done.get(name, 0)) for name in rank.role.gates[gate]}
        if at[instruction.name] > round:
            return True
        coming = [name for name, next_ in at.items() if name not in board.void and not _over(rank, next_)]
        waiting = [name for name in coming if arrived(rank, rank.role.on_name[name], at[name])]
        if opens(gate, board.ages, coming, waiting):
            board.passed |= {name: at[name] + 1 for name in waiting}
            board.tell()
        return board.passed.get(instruction.name, 0) > round


def _over(rank: Rank, round: int) -> bool:
    """Whether the round never begins: the run ends, or is stopped, before it."""
    end = rank.brake.end
    return round >= rank.board.stop or (end is not None and rank.step(round, 0) >= end)
