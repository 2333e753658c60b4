"""Whether replicas still have the same weights.

A flipped bit, another seed, or an update that one rank makes alone would go unnoticed otherwise.

rank 0  b0 5f3a  b1 77c0        rank 2's bucket b1 differs from those of ranks 0, 1
rank 1  b0 5f3a  b1 77c0
rank 2  b0 5f3a  b1 0e19
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from partita.checkpoints.holding import copies_of
from partita.program.program import Program
from partita.program.space import Space
from partita.runtime.rank import Rank
from partita.transport.messages import gather, spread


@dataclass(frozen=True, slots=True)
class Divergence:
    """A rank whose weights differ from those of the others, in a sentence."""

    rank: int
    sentence: str


def find_divergence(rank: Rank, step: int, number: int, world: int) -> Divergence | None:
    """The rank whose weights differ, on all ranks, or None. Collective: every rank of the Program must call it at
    the end of a round, at step `step`."""
    found: list[Mapping[str, int]] = gather(digests(rank), number, world)
    divergence = divergence_of(rank.program, step, found) if found else None
    told = spread([divergence.rank, divergence.sentence] if divergence else None, number, world)
    return Divergence(*told) if told else None


def digests(rank: Rank, among: Collection[str] | None = None) -> dict[str, int]:
    """A checksum of each whole bucket that is equal on other ranks; with `among`, only of buckets among these."""
    return {
        name: zlib.crc32(_weights(rank, name).detach().cpu().view(torch.uint8).numpy().data)
        for name, copies in copies_of(rank.program).items()
        if copies.weights
        and (among is None or name in among)
        and len(copies.ranks) > 1
        and rank.rank in copies.ranks
        and rank.program.bucket[name].keeps(Space.PARAMETER)
    }


def _weights(rank: Rank, bucket: str) -> torch.Tensor:
    """A bucket's weights; their masters, if every rank has all of them."""
    shared = rank.program.bucket[bucket].shares
    return rank.state.parameter[bucket] if shared else rank.state.master.get(bucket, rank.state.parameter[bucket])


def divergence_of(program: Program, step: int, found: Sequence[Mapping[str, int]]) -> Divergence | None:
    """The rank that differs from most others, given the checksums of all ranks at a step; the last one if there is
    no majority."""
    for name, copies in copies_of(program).items():
        by_sum: dict[int, list[int]] = {}
        for rank in copies.ranks:
            if name in found[rank]:
                by_sum.setdefault(found[rank][name], []).append(rank)
        if len(by_sum) > 1:
            most, *others = sorted(by_sum.values(), key=len, reverse=True)
            few = sorted(rank for ranks in others for rank in ranks)
            weights = ", ".join(dict.fromkeys(piece.parameter for piece in program.bucket[name].pieces[:3]))
            who = "rank" if len(few) == 1 else "ranks"
            doubt = "" if len(most) > len(few) else " (or the other way round: there is no majority)"
            return Divergence(
                few[-1],
                f"the weights of {who} {', '.join(map(str, few))} differ from those of {', '.join(map(str, most))}"
                f"{doubt}, in bucket {name} ({weights}, ...): a flipped bit, another seed, or code that changes "
                "weights by itself; look at that rank's machine and go on from the last checkpoint with --resume; "
                f"found at step {step}",
            )
    return None
