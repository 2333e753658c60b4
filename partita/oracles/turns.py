"""What each rank contributes to the sum of a bucket, derived from a Program's instructions.

P0#0 P0#1(add) A0            one turn a round: the gradient of both microbatches
P0#0 E0#0 A0#0 P0#1 ..       one turn for each, if a bucket is summed before more is packed (ZeRO's second stage)
"""

from __future__ import annotations

from partita.program.instruction import Load, Pack
from partita.program.program import Program, Role

Parts = tuple[tuple[int, int], ...]  # (start, count) of samples, in their order


def turns_of(program: Program) -> dict[str, dict[int, tuple[Parts, ...]]]:
    """Bucket -> rank -> the samples whose gradient it contributes, turn by turn."""
    found: dict[str, dict[int, tuple[Parts, ...]]] = {bucket.name: {} for bucket in program.trained}
    for role in program.roles:
        loads = {act.part: act for act in role.acts(Load)}
        for bucket, turns in _packed(role).items():
            for rank in role.ranks if bucket in found else ():
                found[bucket][rank] = tuple(
                    tuple(sorted((role.mine(loads[part].start, rank), loads[part].count) for part in turn))
                    for turn in turns
                )
    return found


def _packed(role: Role) -> dict[str, list[list[str]]]:
    """Bucket -> for each time that it is packed anew, the environments packed into it; two stages of a rank may have
    one."""
    found: dict[str, list[list[str]]] = {}
    for act in role.acts(Pack):
        turns = found.setdefault(act.bucket, [])
        if not act.add:
            turns.append([])
        if act.part not in turns[-1]:
            turns[-1].append(act.part)
    return found
