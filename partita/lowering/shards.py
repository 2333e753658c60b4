"""State divided over the ranks that agree on it (ZeRO): a pass over a Program that sums gradients by all-reduces.

optimizer    compute   F0 F1 B0 P0 B1 P1            | F of the next round, each part after the G of what it reads
             wire               Z0--- Z1--- G1-- G0-- Z: sums scattered to their owners; G: new weights gathered
             update                  U0    U1         each owner its part
gradients    shard                 K0    K1           K keeps the owner's part of Z and gives the rest back; it does
                                                      so before the Pack after next, so two buckets are there at most
parameters   compute   F0 X1 F1 X0 B0 P0 X0 B1 P1 X1  X gives a bucket back after its last reader
             wire    G1 G0        G0 G1 Z0 Z1         gathered for each pass, `ahead` buckets before their turn

Each bucket has its even parts, so a round sends (N-1)/N of the gradients and as much of the weights for each gather. A
bucket that several stages hold keeps its whole. Rules that mix elements get whole buckets, spread over the owners.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from partita.graph.graph import Graph
from partita.lowering.coding import DECODE, of_parts
from partita.lowering.gathers import gathered, merged, uses_of
from partita.lowering.norm import SQUARES, bounded
from partita.lowering.readers import reads_of
from partita.plan.memory import Memory, Shard
from partita.plan.plan import Plan
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
from partita.program.layout import NORM, WEIGHT, Bucket, Shares, even
from partita.program.program import Lane, Program, Role
from partita.program.space import Kind, Space
from partita.wire.algorithms import PAIRWISE

Groups = tuple[tuple[int, ...], ...]
Holders = dict[str, set[int]]  # of each bucket the stages that hold a parameter of it
WHOLE: Final = {
    Shard.OPTIMIZER: (Space.PARAMETER, Space.GRADIENT),
    Shard.GRADIENTS: (Space.PARAMETER,),
    Shard.PARAMETERS: (),
}
ROOM: Final = 2  # packed buckets that wait to be scattered, where gradients are divided


def unsliced(plan: Plan) -> Plan:
    """The plan as it is lowered where state is divided: its parts take the place of slices."""
    if plan.memory.shard is Shard.NONE:
        return plan
    return replace(plan, sync=tuple(replace(one, wire=replace(one.wire, slice_bytes=0)) for one in plan.sync))


def sharded(program: Program, graph: Graph, memory: Memory) -> Program:
    """The program with the state of what it all-reduces divided as `memory` says."""
    if memory.shard is Shard.NONE:
        return program
    agreed = _agreed(program)
    if not agreed:
        return program
    held = _holders(program)
    buckets = _shared(program, graph, memory, agreed, held)
    whole = replace(program, buckets=buckets)
    roles = tuple(_Writer(whole, graph, memory, role, held).write() for role in program.roles)
    named = {act.bucket for role in roles for act in role.acts(Collective)}
    kept = tuple(b for b in buckets if b.name != NORM) + ((SQUARES,) if NORM in named else ())
    of = {bucket.name: bucket for bucket in buckets}
    return replace(
        program, roles=roles, buckets=kept, codings=tuple(of_parts(c, of[c.bucket]) for c in program.codings)
    )


def _agreed(program: Program) -> dict[str, Groups]:
    """Each bucket whose gradient is summed up, as it is or encoded, and by whom."""
    acts = program.acts(Collective)
    coded = {program.coding[act.bucket].bucket: act.groups for act in acts if act.space is Space.CODED}
    plain = {
        act.bucket: act.groups for act in acts if act.space is Space.GRADIENT and program.bucket[act.bucket].pieces
    }
    return plain | coded


def _shared(
    program: Program, graph: Graph, memory: Memory, agreed: dict[str, Groups], held: Holders
) -> tuple[Bucket, ...]:
    found, load = [], dict.fromkeys(range(max(len(g) for groups in agreed.values() for g in groups)), 0)
    for bucket in program.buckets:
        if bucket.name in agreed:
            groups = agreed[bucket.name]
            size = len(groups[0])
            edges = even(bucket.elements, size)
            if not graph.optimizer.elementwise:
                owner = min(range(size), key=lambda place: load[place])
                load[owner] += bucket.size
                edges = (0,) * (owner + 1) + (bucket.elements,) * (size - owner)
            whole = WHOLE[memory.shard if len(held[bucket.name]) < 2 else Shard.OPTIMIZER]
            bucket = replace(bucket, shares=Shares(groups, edges, whole))
        found.append(bucket)
    return tuple(found)


def _holders(program: Program) -> Holders:
    stages: dict[str, set[int]] = {}
    for number, stage in enumerate(program.stages):
        for parameter in stage.parameters:
            stages.setdefault(parameter.name, set()).add(number)
    return {b.name: {n for piece in b.pieces for n in stages.get(piece.parameter, ())} for b in program.buckets}


class _Writer:
    """Writes one role anew; lives for one call of `sharded`.

    `line` is what the compute lane does, `at` the place of each name in it; `wire`, `shard` and `updates` hold
    instructions by the place after which they can go on, which is the order in which their lanes take them: so nothing
    waits for what comes behind it. What other stages come to as well is last (`ties`): their places are not known here.
    """

    def __init__(self, program: Program, graph: Graph, memory: Memory, role: Role, held: Holders) -> None:
        self.program, self.graph, self.role = program, graph, role
        work = [i for i in role.on("compute") if isinstance(i.act, Compute | Pack)]
        self.held, self.acts = held, dict[str, Collective]()  # of each bucket one sum, in every microbatch
        packed = dict.fromkeys(i.act.bucket for i in work if isinstance(i.act, Pack) and i.act.bucket != WEIGHT)
        self.buckets = [program.bucket[name] for name in packed]
        self.reads = reads_of(program, graph, role, self.buckets)
        away = [bucket for bucket in self.buckets if not bucket.keeps(Space.PARAMETER)]
        uses = merged(uses_of(program, graph, work, self.reads, away), memory.keep)
        self.line, gathers = gathered(work, uses, memory.ahead)
        self.at = {i.name: n for n, i in enumerate(self.line)}
        self.ties, self.last = self._ties()
        self.wire: list[tuple[int, Instruction]] = gathers
        self.shard: list[tuple[int, Instruction]] = []
        self.updates: list[tuple[int, Instruction]] = []
        self.ready: dict[str, str] = {}
        acts = role.acts(Collective)
        self.hops = {act.bucket: act.codec for act in acts if act.space is Space.GRADIENT}
        self.codings = {coding.bucket: coding.name for coding in program.codings}
        self.encoded: list[tuple[int, Instruction]] = []
        self.decoded: list[tuple[int, Instruction]] = []

    def write(self) -> Role:
        role = self.role
        agreed = {b.name for b in self.buckets if b.shares} | {NORM} | self.program.coding.keys()
        for one in role.instructions:
            if isinstance(one.act, Collective) and one.act.bucket not in agreed:
                place = max(self.at[after.name] for after in one.after)
                self.wire.append((len(self.line) if self.program.stages else place, replace(one, lane="wire")))
        self._scatter()
        self._update()
        self._gather()
        rest = [i for i in role.instructions if i.lane not in ("compute", "wire", "urgent", DECODE)]
        found = [*enumerate(self.line), *self.encoded, *self.wire, *self.decoded, *self.shard, *self.updates]
        body = (*rest, *(i for _, i in sorted(found, key=lambda one: one[0])))
        lanes = dict.fromkeys(["compute", "data", *(i.lane for i in body)])
        return replace(role, instructions=body, lanes=tuple(Lane(lane) for lane in lanes))

    def _scatter(self) -> None:
        """Sums to their owners: of every Pack where gradients are divided, of the last one where they are not."""
        room: list[str] = []
        own: dict[str, str] = {}
        lasts = {i.act.bucket: i.name for i in self.line if isinstance(i.act, Pack)}
        packs = [(n, i, i.act) for n, i in enumerate(self.line) if isinstance(i.act, Pack) and i.act.bucket != WEIGHT]
        away = [i.name for _, i, act in packs if not self.program.bucket[act.bucket].keeps(Space.GRADIENT)]
        gone = set(away)
        for n, pack, act in packs:
            bucket, divided = self.program.bucket[act.bucket], pack.name in gone
            tag = pack.name[1:] if divided else act.bucket[1:]
            self.ready[act.bucket] = pack.name
            if not bucket.shares or (lasts[act.bucket] != pack.name and not divided):
                continue
            place = self.ties.get(act.bucket, n)
            self.ready[act.bucket] = self._sum(bucket, tag, pack.name, n, place, own.get(act.bucket, ""))
            if divided:
                before = away[(len(room) - ROOM) % len(away)]
                freed = [After(f"K{before[1:]}", -((len(room) - ROOM) // len(away)))]
                freed += [After(f"K{own[act.bucket]}")] if act.bucket in own else []
                own[act.bucket] = tag
                self.line[n] = replace(pack, act=replace(act, add=False), after=(*pack.after, *freed))
                keep = Free(act.bucket, Space.GRADIENT, act.add)
                self.shard.append((n, Instruction(f"K{tag}", keep, "shard", (After(self.ready[act.bucket]),))))
                self.ready[act.bucket] = f"K{tag}"
                room.append(pack.name)

    def _sum(self, bucket: Bucket, tag: str, pack: str, packed: int, place: int, before: str) -> str:
        """The name of that after which an owner has the sum of its part; `before` is the tag of the round's sum of the
        same bucket before this one."""
        assert bucket.shares
        made, groups = self.codings.get(bucket.name), bucket.shares.groups
        if made is None:
            scatter = Collective(Kind.REDUCE_SCATTER, bucket.name, groups, codec=self.hops[bucket.name])
            scatter = self.acts.setdefault(bucket.name, scatter)
            self.wire.append((place, Instruction(f"Z{tag}", scatter, "wire", (After(pack),))))
            return f"Z{tag}"
        group = next(group for group in groups if self.role.ranks[0] in group)
        free = After(f"D{before}") if before else After(f"D{self.last_tag(bucket)}", 1)
        self.encoded.append((packed, Instruction(f"E{tag}", Encode(bucket.name, made), "compute", (After(pack), free))))
        scatter = Collective(Kind.REDUCE_SCATTER, made, groups, Space.CODED, PAIRWISE)
        self.wire.append((place, Instruction(f"Z{tag}", scatter, "wire", (After(f"E{tag}"),))))
        read = Decode(bucket.name, made, group)
        self.decoded.append((place, Instruction(f"D{tag}", read, DECODE, (After(f"Z{tag}"),))))
        return f"D{tag}"

    def last_tag(self, bucket: Bucket) -> str:
        """What the name of a round's last sum of a bucket ends with."""
        last = next(i for i in reversed(self.line) if isinstance(i.act, Pack) and i.act.bucket == bucket.name)
        return bucket.name[1:] if bucket.keeps(Space.GRADIENT) else last.name[1:]

    def _update(self) -> None:
        """Each owner its part, once nobody here reads the old weights any more."""
        summed = (After("AW"),) if any(i.name == "AW" for i in self.role.instructions) else ()
        packs = {i.act.bucket: n for n, i in enumerate(self.line) if isinstance(i.act, Pack)}
        bounded_by, every = self.graph.clip_norm, tuple(After(name) for name in self.ready.values())
        end = self.last
        for bucket in self.buckets:
            read = self.line[max(self.reads_at(bucket), default=0)].name
            waits = (After(self.ready[bucket.name]), *((After(read),) if bucket.keeps(Space.PARAMETER) else ()))
            place = max([packs[bucket.name], *(self.at[a.name] for a in waits if a.name in self.at)])
            place = self.ties.get(bucket.name, place)
            name = bucket.name[1:]
            if summed:
                scale = Scale(bucket.name, space=Space.GRADIENT, by=WEIGHT)
                self.updates.append((place, Instruction(f"W{name}", scale, "update", (*waits, *summed))))
            update = Instruction(f"U{name}", Update(bucket.name), "update", waits)
            self.updates.append((end + 1 if bounded_by else place, update))
        if bounded_by:
            shares = {bucket.name: 1.0 for bucket in self.buckets}
            everybody = tuple(sorted(rank for role in self.program.roles for rank in role.ranks))
            for one in bounded(bounded_by, shares, (everybody,), every, lane="update", wire="wire"):
                (self.wire if one.lane == "wire" else self.updates).append((end, one))

    def _ties(self) -> tuple[dict[str, int], int]:
        """Where the sum of each bucket stands that several stages hold, which its gather follows, and behind how many
        places that of all else does.

        All holders take them in one order: the first of the later stages go first, whose backward passes end sooner.
        Where an earlier stage than this rank's comes to one, it and the next are also behind the gathers of what is
        this rank's alone. A bound on the norm waits for all sums before anything is updated.
        """
        end, waits, first = len(self.line), False, dict[str, int]()
        for act in (i.act for i in self.line if isinstance(i.act, Pack)):
            first[act.bucket] = min(act.stage, first.get(act.bucket, act.stage))
        found, last = dict[str, int](), end
        tied = (bucket.name for bucket in self.buckets if len(self.held[bucket.name]) > 1)
        for n, name in enumerate(sorted(tied, key=lambda name: (-min(self.held[name]), name))):
            waits = waits or first[name] > min(self.held[name])
            found[name] = end + n if self.graph.clip_norm else end + 2 * (n + waits)
            last = last if waits and not self.graph.clip_norm else found[name]
        return found, last + bool(self.graph.clip_norm and found)

    def reads_at(self, bucket: Bucket) -> list[int]:
        """The places in the line of what reads a bucket's weights."""
        return [self.at[name] for name in self.reads[bucket.name]]

    def _gather(self) -> None:
        """New weights where the whole is kept, as the next forward pass needs them."""
        whole = [b for b in self.buckets if b.shares and b.keeps(Space.PARAMETER)]
        behind = 1 + (self.last - len(self.line) if self.graph.clip_norm else 0)
        for bucket in sorted(whole, key=lambda b: min(self.reads_at(b), default=len(self.line))):
            assert bucket.shares
            name = bucket.name[1:]
            act = Collective(Kind.ALL_GATHER, bucket.name, bucket.shares.groups, Space.PARAMETER)
            place = self.ties[bucket.name] + behind if bucket.name in self.ties else self.last + 1
            self.wire.append((place, Instruction(f"G{name}", act, "wire", (After(f"U{name}"),))))
            first = min(self.reads_at(bucket), default=0)
            self.line[first] = replace(self.line[first], after=(*self.line[first].after, After(f"G{name}", 1)))
