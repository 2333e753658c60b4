"""Whether a rank comes to a collective with what the Program says. Given anything else, a backend adds up what does not
belong together, aborts the process, or waits for ever.

Program    A0 of b0   A1 of b1   A0 of b0 ...       collectives of one group and lane are matched by their order alone
rank 1     A0 of b0   (left out) A0 of b0           found as it comes to the next one, before anything is sent
"""

from __future__ import annotations

import torch

from partita.errors import RunError
from partita.program.instruction import Collective
from partita.runtime.rank import Rank


def check_collective(rank: Rank, act: Collective, name: str, round: int, flat: torch.Tensor) -> None:
    """Raises RunError with the rank and the step where the collective is not the Program's. Otherwise counts it as
    begun."""
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
    rank.collectives_begun[name] = round + 1


def _left_out(rank: Rank, name: str, round: int) -> str:
    """The collective of the same group before this one, where this rank has not begun it."""
    before, back = rank.role.collective_before.get(name, ("", 0))
    due = round - back
    if not before or rank.spare or rank.collectives_begun.get(before, 0) > due:
        return ""
    act = rank.role.on_name[before].act
    assert isinstance(act, Collective)
    return f"{before}, the {act.kind} of bucket {act.bucket} in step {rank.step(due, 0)}"
