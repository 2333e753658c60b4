"""A bound on the norm of all gradients, where each rank holds some of them: agreed on by a sum of one number.

compute   .. W0 W1  N ........ C  U0 U1       N squares of what is here, each bucket's once among all that hold it
wire                   AN-----                their sum over the ranks
"""

from __future__ import annotations

from collections.abc import Mapping

from partita.program.instruction import After, Clip, Collective, Instruction, Norm
from partita.program.layout import NORM, WORD, of_one_number
from partita.program.space import Kind

SQUARES, WORDS = of_one_number(NORM), of_one_number(WORD)
Ranks = tuple[int, ...]


def norm_shares(mine: Mapping[str, Ranks], group: Ranks) -> dict[str, float]:
    """What one of a bucket's holders counts of it, that all in `group` together count it once."""
    return {bucket: 1 / len(set(holders) & set(group)) for bucket, holders in mine.items()}


def bounded(
    norm: float, shares: Mapping[str, float], groups: tuple[Ranks, ...], ready: tuple[After, ...], *, lane: str,
    wire: str,
) -> list[Instruction]:  # fmt: skip
    """The instructions, the last one named C, that bound the common norm of what the ranks of a group hold; this rank
    holds `shares`. A group of one asks nobody."""
    buckets = tuple(shares)
    if max(map(len, groups)) == 1:
        return [Instruction("C", Clip(buckets, norm), lane, ready)]
    return [
        Instruction("N", Norm(buckets, tuple(shares.values())), lane, ready),
        Instruction("AN", Collective(Kind.ALL_REDUCE, NORM, groups), wire, (After("N"),)),
        Instruction("C", Clip(buckets, norm, by=NORM), lane, (After("AN"),)),
    ]
