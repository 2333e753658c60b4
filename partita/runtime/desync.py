"""What a rank brings to a collective against what the Program says it brings: a backend that is given something else
adds up what does not belong together, aborts the process, or waits for ever.

Program    A0 of b0   A1 of b1   A0 of b0 ...       one group's collectives in a lane are matched by their order alone
rank 1     A0 of b0   (left out) A0 of b0           found as it comes to the next one, before anything is sent
"""

from __future__ import annotations

import torch

from partita.errors import RunError
from partita.program.instruction import Collective
from partita.runtime.rank import Rank


def check_brought(rank: Rank, act: Collective, name: str, round: int, flat: torch.Tensor) -> None:
    """Raises RunError naming the rank and the step where this is not what the Program has here. Counts it as begun."""
    said, step = rank.role.on_name[name].act, rank.step(round, 0)
    assert isinstance(said, Collective)
    elements = rank.program.bucket[said.bucket].elements
    where = f"{name}, the {said.kind} of bucket {said.bucket} in step {step}"
    wrong = ""
    if (act.kind, act.bucket) != (said.kind, said.bucket):
        wrong = f"brings a {act.kind} of bucket {act.bucket} to {where}"
    elif flat.numel() != elements:
        wrong = f"brings {flat.numel()} numbers to {where}, which has {elements}"
    elif missed := _left_out(rank, name, round):
        wrong = f"has left out {missed} and comes to {where}"
    if wrong:
        raise RunError(
            f"rank {rank.rank} {wrong}; nothing was sent: look for what only that rank does, and at its machine",
            rank=rank.rank, step=step,
        )  # fmt: skip
    rank.brought[name] = round + 1


def _left_out(rank: Rank, name: str, round: int) -> str:
    """The collective of the same group before this one, where this rank has not begun it."""
    before, back = rank.role.collective_before.get(name, ("", 0))
    due = round - back
    if not before or rank.spare or rank.brought.get(before, 0) > due:
        return ""
    act = rank.role.on_name[before].act
    assert isinstance(act, Collective)
    return f"{before}, the {act.kind} of bucket {act.bucket} in step {rank.step(due, 0)}"
