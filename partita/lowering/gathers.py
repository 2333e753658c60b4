"""When weights that a rank does not keep are there: gathered before each use, `ahead` of its turn, given back after it.

uses      b2 F0  b1 F1  b0 F2 B0  b1 B1  b2 B2        keep=1: b0's two uses are one
wire    G2 G1     G0        G1.1    G2.1              ahead=1: G1 goes when F0 may begin
compute      F0 X2  F1 X1  F2 B0 X0  B1 X1.1 ..
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from partita.graph.graph import Graph
from partita.program.instruction import After, Collective, Compute, Free, Instruction, Pack
from partita.program.layout import Bucket
from partita.program.program import Program
from partita.program.space import Kind, Space

Placed = tuple[int, Instruction]  # behind which place of the compute lane it can go on


@dataclass(frozen=True, slots=True)
class Use:
    """A bucket's weights are read from instruction `first` to `last` of the compute lane."""

    bucket: Bucket
    first: int
    last: int


def uses_of(
    program: Program, graph: Graph, work: Sequence[Instruction], reads: Mapping[str, tuple[str, ...]],
    buckets: Sequence[Bucket],
) -> list[Use]:  # fmt: skip
    """One use of a bucket for each pass that reads it, and for each backward pass that makes its gradients: there the
    method gathers it whether it is read or not (3(N-1)/N of all bytes a round, ME-03)."""
    found = []
    for bucket in buckets:
        spans: dict[tuple[bool, str, int], list[int]] = {}
        makers: dict[tuple[bool, str, int], int] = {}
        computing = (False, "", -1), 0
        for n, one in enumerate(work):
            if isinstance(one.act, Compute):
                segment = program.segment[one.act.segment]
                forward = segment.start < program.graph_of(segment.stage, graph).forward_length
                computing = (forward, one.act.part, segment.stage), n
                if one.name in reads[bucket.name]:
                    spans.setdefault(computing[0], []).append(n)
            elif isinstance(one.act, Pack) and one.act.bucket == bucket.name:
                makers[computing[0]] = computing[1]
        for key, n in makers.items():
            spans.setdefault(key, [n])
        found += [Use(bucket, places[0], places[-1]) for places in spans.values()]
    return found


def merged(uses: Sequence[Use], keep: int) -> list[Use]:
    """Uses by their first instruction; those of one bucket become one where they overlap, or where fewer than `keep`
    uses of others begin between them."""
    found: list[Use] = []
    place: dict[str, int] = {}
    begun: dict[str, int] = {}
    for number, use in enumerate(sorted(uses, key=lambda use: (use.first, use.last))):
        name = use.bucket.name
        at = place.get(name)
        if at is not None and (use.first <= found[at].last or number - begun[name] - 1 < keep):
            found[at] = replace(found[at], last=max(found[at].last, use.last))
        else:
            place[name] = len(found)
            found.append(use)
        begun[name] = number
    return found


def gathered(work: Sequence[Instruction], uses: Sequence[Use], ahead: int) -> tuple[list[Instruction], list[Placed]]:
    """(the compute lane, with what waits for gathers and gives back; the gathers, each with the place in that lane
    after which it goes, negative in the round before).

    A gather goes once the use `ahead` of its own may begin, the bucket's use before is over, and in a round's first
    one the update.
    """
    names = _numbered(uses)
    line, starts = _compute_lane(work, uses, names)
    at = {one.name: n for n, one in enumerate(line)}
    final = {use.bucket.name: name for name, use in zip(names, uses, strict=True)}
    earlier, acts = dict[str, str](), dict[str, Collective]()  # of each bucket one act, however often it is used
    found = []
    for j, (name, use) in enumerate(zip(names, uses, strict=True)):
        back, before = divmod(j - ahead, len(uses))
        trigger = starts[uses[before].first] - 1 + back * len(line)
        waits, bucket = [], use.bucket.name
        if bucket in earlier:
            freed = at[f"X{earlier[bucket]}"]
            waits.append(After(line[freed].name))
            trigger = max(trigger, freed)
        else:
            waits += [After(f"U{bucket[1:]}", 1), After(f"X{final[bucket]}", 1)]
        earlier[bucket] = name
        rounds, place = -(trigger // len(line)), trigger % len(line)
        waits.append(After(line[place].name, rounds))
        shares = use.bucket.shares
        assert shares
        act = acts.setdefault(bucket, Collective(Kind.ALL_GATHER, bucket, shares.groups, Space.PARAMETER))
        found.append((trigger, Instruction(f"G{name}", act, "wire", tuple(dict.fromkeys(waits)))))
    return line, found


def _numbered(uses: Sequence[Use]) -> list[str]:
    """What the instructions of each use have behind their letter: its bucket's number, and which use of it this is."""
    names, count = [], Counter[str]()
    for bucket in (use.bucket.name for use in uses):
        names.append(bucket[1:] + (f".{count[bucket]}" if count[bucket] else ""))
        count[bucket] += 1
    return names


def _compute_lane(
    work: Sequence[Instruction], uses: Sequence[Use], names: Sequence[str]
) -> tuple[list[Instruction], list[int]]:
    """(the compute lane: the first reader of a use waits for its gather, and behind the last one it is given back;
    where each instruction of `work` stands in it)."""
    begun: dict[int, list[After]] = {}
    over: dict[int, list[Instruction]] = {}
    for name, use in zip(names, uses, strict=True):
        begun.setdefault(use.first, []).append(After(f"G{name}"))
        over.setdefault(use.last, []).append(Instruction(f"X{name}", Free(use.bucket.name, Space.PARAMETER), "compute"))
    line, starts = list[Instruction](), list[int]()
    for n, one in enumerate(work):
        starts.append(len(line))
        line += (replace(one, after=(*one.after, *begun[n])) if n in begun else one, *over.get(n, ()))
    return line, starts
