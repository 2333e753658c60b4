"""The gates of a running rank: which instances may pass, and when."""

from __future__ import annotations

from collections.abc import Callable

from partita.program.gate import opens
from partita.program.instruction import Instruction
from partita.runtime.rank import Rank

Arrived = Callable[[Rank, Instruction, int], bool]


def passes_gate(rank: Rank, instruction: Instruction, round: int, arrived: Arrived) -> bool:
    """Whether an instance whose predecessors are done may pass its gate. `arrived` tells whether the predecessors of
    another member's instance are done. Members that have no instance left, or are left out, are not waited for."""
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
    """Whether the round never begins, since the run ends or is stopped before it."""
    return round >= rank.board.stop or rank.brake.over(rank.step(round, 0))
