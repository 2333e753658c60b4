"""A role written anew where buckets have owners: what it computes stays, and all else is placed behind that.

line      F0 F1 B0 P0 B1 P1 |              the compute lane: places 0, 1, ..
behind           2: Z0  5: Z1 K1 U1        a lane takes its instructions by the places after which they can go on, so
                                           nothing waits for what comes behind it; sums with other stages are `ties`
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from partita.graph.graph import Graph
from partita.lowering.coding import DECODE
from partita.lowering.gathers import Placed, gathered, merged, uses_of
from partita.lowering.norm import bounded
from partita.lowering.readers import reads_of
from partita.lowering.ties import Holders, Ties, ties_of
from partita.plan.memory import Memory
from partita.plan.wire import Codec
from partita.program.instruction import (
    After,
    Collective,
    Compute,
    Decode,
    Encode,
    Free,
    Instruction,
    Pack,
    Scale,
    Update,
)
from partita.program.layout import NORM, WEIGHT, Bucket
from partita.program.program import Lane, Program, Role
from partita.program.space import Kind, Space
from partita.wire.algorithms import PAIRWISE

ROOM: Final = 2  # packed buckets that wait to be scattered, where gradients are divided
LANES: Final = ("compute", "wire", DECODE, "shard", "update")  # in the order of a role's text at one place


@dataclass(frozen=True)
class Work:
    """What a role computes (`line`), the buckets that it packs, and of each the names of the segments that read it."""

    program: Program
    role: Role
    line: tuple[Instruction, ...]
    buckets: tuple[Bucket, ...]
    reads: Mapping[str, tuple[str, ...]]
    ties: Ties

    @cached_property
    def place(self) -> dict[str, int]:
        """The place in the line of each of its instructions."""
        return {one.name: n for n, one in enumerate(self.line)}

    @cached_property
    def packs(self) -> dict[str, list[str]]:
        """The names of each bucket's Packs, in the order of the line."""
        found: dict[str, list[str]] = {bucket.name: [] for bucket in self.buckets}
        for one in self.line:
            if isinstance(one.act, Pack) and one.act.bucket in found:
                found[one.act.bucket].append(one.name)
        return found

    @cached_property
    def codecs(self) -> dict[str, Codec | None]:
        """The codec of each message of a bucket's sum."""
        acts = self.role.acts(Collective)
        return {act.bucket: act.codec for act in acts if act.space is Space.GRADIENT}

    @cached_property
    def codings(self) -> dict[str, str]:
        """What is made of a bucket before it is summed up."""
        return {coding.bucket: coding.name for coding in self.program.codings}

    def sent(self, bucket: Bucket) -> list[tuple[str, str]]:
        """(Pack, label) of each sum of a bucket in a round: after every Pack where gradients are divided, after the
        last one where they are not."""
        packs = self.packs[bucket.name]
        return [(packs[-1], bucket.name[1:])] if bucket.keeps(Space.GRADIENT) else [(p, p[1:]) for p in packs]

    def sum_place(self, bucket: Bucket, pack: str) -> int:
        """The place behind which the sum of what `pack` packs can go on."""
        return self.ties.sums.get(bucket.name, self.place[pack])

    def read_at(self, bucket: Bucket) -> list[int]:
        """The places of what reads a bucket's weights."""
        return [self.place[name] for name in self.reads[bucket.name]]


def divided(program: Program, graph: Graph, memory: Memory, role: Role, holders: Holders) -> Role:
    """The role, where buckets of the program have owners."""
    work, gathers = _work(program, graph, memory, role, holders)
    owned = [bucket for bucket in work.buckets if bucket.shares]
    placed: list[Placed] = [
        *enumerate(_line(work)),
        *gathers,
        *_undivided(work),
        *(one for bucket in owned for one in _sums(work, bucket)),
        *_updates(work, graph.clip_norm),
        *_regathers(work),
    ]
    placed.sort(key=lambda one: (one[0], LANES.index(one[1].lane)))
    rest = [one for one in role.instructions if one.lane not in ("compute", "wire", "urgent", DECODE)]
    body = (*rest, *(instruction for _, instruction in placed))
    lanes = dict.fromkeys(["compute", "data", *(one.lane for one in body)])
    return replace(role, instructions=body, lanes=tuple(Lane(lane) for lane in lanes))


def _work(program: Program, graph: Graph, memory: Memory, role: Role, holders: Holders) -> tuple[Work, list[Placed]]:
    """What the role computes, and the gathers of weights that it does not keep."""
    line = [one for one in role.on("compute") if isinstance(one.act, Compute | Pack)]
    packs = [one.act for one in line if isinstance(one.act, Pack) and one.act.bucket != WEIGHT]
    buckets = tuple(program.bucket[name] for name in dict.fromkeys(act.bucket for act in packs))
    reads = reads_of(program, graph, role, buckets)
    away = [bucket for bucket in buckets if not bucket.keeps(Space.PARAMETER)]
    line, gathers = gathered(line, merged(uses_of(program, graph, line, reads, away), memory.keep), memory.ahead)
    ties = ties_of(packs, holders, len(line), bounded=bool(graph.clip_norm))
    return Work(program, role, tuple(line), buckets, reads, ties), gathers


def _line(work: Work) -> list[Instruction]:
    """The compute lane. A Pack of a divided gradient waits until the one `ROOM` before it, and the bucket's own before
    it, are given back; what reads weights first, until they are gathered, or updated where this rank alone has them."""
    line = list(work.line)
    divided = {bucket.name for bucket in work.buckets if not bucket.keeps(Space.GRADIENT)}
    packs = [(one, one.act) for one in line if isinstance(one.act, Pack) and one.act.bucket in divided]
    before: dict[str, After] = {}
    for n, (pack, act) in enumerate(packs):
        rounds, place = divmod(n - ROOM, len(packs))
        freed = [After(f"K{packs[place][0].name[1:]}", -rounds)]
        freed += [before[act.bucket]] if act.bucket in before else []
        line[work.place[pack.name]] = replace(pack, act=replace(act, add=False), after=(*pack.after, *freed))
        before[act.bucket] = After(f"K{pack.name[1:]}")
    for bucket in _whole(work):
        first, new = min(work.read_at(bucket), default=0), "G" if bucket.shares else "U"
        line[first] = replace(line[first], after=(*line[first].after, After(f"{new}{bucket.name[1:]}", 1)))
    return line


def _undivided(work: Work) -> Iterator[Placed]:
    """The collectives of what nobody owns, behind what they wait for; of stages, behind the line."""
    anew = {bucket.name for bucket in work.buckets if bucket.shares} | {NORM} | work.program.coding.keys()
    for one in work.role.instructions:
        if isinstance(one.act, Collective) and one.act.bucket not in anew:
            place = max(work.place[after.name] for after in one.after)
            yield len(work.line) if work.program.stages else place, replace(one, lane="wire")


def _sums(work: Work, bucket: Bucket) -> list[Placed]:
    """A bucket's sums to their owners, each of whom keeps its part and gives the rest back."""
    coding = work.codings.get(bucket.name, "")
    placed = _encoded(work, bucket, coding) if coding else _plain(work, bucket)
    if not bucket.keeps(Space.GRADIENT):
        for n, (pack, label) in enumerate(work.sent(bucket)):
            act, summed = Free(bucket.name, Space.GRADIENT, add=n > 0), After(f"{'D' if coding else 'Z'}{label}")
            placed.append((work.place[pack], Instruction(f"K{label}", act, "shard", (summed,))))
    return placed


def _plain(work: Work, bucket: Bucket) -> list[Placed]:
    """A bucket's sums as they are, or each message of theirs encoded."""
    assert bucket.shares
    scatter = Collective(Kind.REDUCE_SCATTER, bucket.name, bucket.shares.groups, codec=work.codecs[bucket.name])
    return [
        (work.sum_place(bucket, pack), Instruction(f"Z{label}", scatter, "wire", (After(pack),)))
        for pack, label in work.sent(bucket)
    ]


def _encoded(work: Work, bucket: Bucket, coding: str) -> list[Placed]:
    """A bucket's sums where each rank encodes what it has, once its coding before has been read."""
    assert bucket.shares
    encode, groups = Encode(bucket.name, coding), bucket.shares.groups
    scatter = Collective(Kind.REDUCE_SCATTER, coding, groups, Space.CODED, PAIRWISE)
    decode = Decode(bucket.name, coding, bucket.shares.group_of(work.role.ranks[0]))
    sent, placed = work.sent(bucket), list[Placed]()
    for n, (pack, label) in enumerate(sent):
        place, read = work.sum_place(bucket, pack), After(f"D{sent[n - 1][1]}", int(n == 0))
        placed += [
            (work.place[pack], Instruction(f"E{label}", encode, "compute", (After(pack), read))),
            (place, Instruction(f"Z{label}", scatter, "wire", (After(f"E{label}"),))),
            (place, Instruction(f"D{label}", decode, DECODE, (After(f"Z{label}"),))),
        ]
    return placed


def _ready(work: Work, bucket: Bucket) -> After:
    """What an owner waits for until it has the whole sum of its part."""
    pack, label = work.sent(bucket)[-1]
    if not bucket.shares:
        return After(pack)
    if not bucket.keeps(Space.GRADIENT):
        return After(f"K{label}")
    return After(f"D{label}" if bucket.name in work.codings else f"Z{label}")


def _updates(work: Work, norm: float) -> list[Placed]:
    """Each owner its part, once nobody here reads the old weights any more, and below a `norm` of all sums (0: any)."""
    weighted, placed = "AW" in work.role.on_name, list[Placed]()
    for bucket in work.buckets:
        waits, pack = [_ready(work, bucket)], work.packs[bucket.name][-1]
        place, label = work.place[pack], bucket.name[1:]
        if bucket.keeps(Space.PARAMETER):
            last = max(work.read_at(bucket), default=0)
            waits.append(After(work.line[last].name))
            place = max(place, last)
        place = work.ties.sums.get(bucket.name, place)
        if weighted:
            scale = Scale(bucket.name, space=Space.GRADIENT, by=WEIGHT)
            placed.append((place, Instruction(f"W{label}", scale, "update", (*waits, After("AW")))))
        update = Instruction(f"U{label}", Update(bucket.name), "update", tuple(waits))
        placed.append((work.ties.bound + 1 if norm else place, update))
    return [*placed, *(_bound(work, norm) if norm else ())]


def _bound(work: Work, norm: float) -> list[Placed]:
    """The bound on the norm of what all ranks own."""
    ready = tuple(_ready(work, bucket) for bucket in work.buckets)
    everybody = tuple(sorted(rank for role in work.program.roles for rank in role.ranks))
    shares = {bucket.name: 1.0 for bucket in work.buckets}
    return [(work.ties.bound, one) for one in bounded(norm, shares, (everybody,), ready, lane="update", wire="wire")]


def _whole(work: Work) -> list[Bucket]:
    """The buckets whose whole weights a rank keeps, by when they are first read."""
    whole = [bucket for bucket in work.buckets if bucket.keeps(Space.PARAMETER)]
    return sorted(whole, key=lambda bucket: min(work.read_at(bucket), default=len(work.line)))


def _regathers(work: Work) -> list[Placed]:
    """New weights where the whole is kept, as the next forward pass needs them."""
    placed = []
    for bucket in (bucket for bucket in _whole(work) if bucket.shares):
        assert bucket.shares
        label, place = bucket.name[1:], work.ties.gathers.get(bucket.name, work.ties.others)
        act = Collective(Kind.ALL_GATHER, bucket.name, bucket.shares.groups, Space.PARAMETER)
        placed.append((place, Instruction(f"G{label}", act, "wire", (After(f"U{label}"),))))
    return placed
