"""A Program, the lowered form of a Plan: for each role its lanes and instructions, and the layouts that they name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import accumulate
from typing import TypeVar

from partita.graph.graph import Graph
from partita.graph.tensor import ITEMSIZE
from partita.plan.plan import Update
from partita.program.gate import Gate
from partita.program.instruction import (
    Apply,
    Collective,
    Combine,
    Compute,
    Decode,
    Encode,
    Instruction,
    Mix,
    Norm,
    Pack,
    Receive,
    Send,
)
from partita.program.layout import NORM, Bucket, Coding, Parcel
from partita.program.scaling import Scaling
from partita.program.space import KEPT, Kind, Space
from partita.units import Bytes

A = TypeVar("A")
T = TypeVar("T")


class Policy(StrEnum):
    """Which instruction a lane takes next: in the order of the text, the first that is ready, or of the ready ones the
    one with the lowest priority number."""

    ORDER = "order"
    ARRIVAL = "arrival"
    PRIORITY = "priority"


@dataclass(frozen=True, slots=True)
class Segment:
    """Operators `start` to `stop` of the graph, or of the graph of a `stage`, for `batch` samples, whose loss has the
    share `weight` of the minibatch's."""

    name: str
    start: int
    stop: int
    batch: int
    weight: float
    stage: int = -1


@dataclass(frozen=True, slots=True)
class Lane:
    """Carries out one instruction at a time. With a `credit`, a lane that chooses starts the next one while fewer than
    `credit` bytes are in flight."""

    name: str
    policy: Policy = Policy.ORDER
    credit: Bytes = 0


@dataclass(frozen=True)
class Role:
    """What each of the ranks in `ranks` does. Numbers in its instructions that differ by rank follow the order of
    `ranks`.

    `keeps` says what such a rank holds: 'model' (a worker) or 'server' (parameters and optimizer only).
    """

    name: str
    ranks: tuple[int, ...]
    instructions: tuple[Instruction, ...]
    lanes: tuple[Lane, ...]
    keeps: str = "model"

    def mine(self, numbers: tuple[T, ...], rank: int) -> T:
        """The value for `rank` of a field that has one value for each rank of the role, or one for all."""
        return numbers[0] if len(numbers) == 1 else numbers[self.place[rank]]

    @cached_property
    def place(self) -> dict[int, int]:
        """Rank -> its index in `ranks`."""
        return {rank: i for i, rank in enumerate(self.ranks)}

    @cached_property
    def on_name(self) -> dict[str, Instruction]:
        """Instruction by name."""
        return {i.name: i for i in self.instructions}

    @cached_property
    def decoded(self) -> dict[str, tuple[int, ...]]:
        """Coding -> the ranks whose codings this role decodes one by one; empty where one coding stands for all."""
        found: dict[str, tuple[int, ...]] = {}
        for act in self.acts(Decode):
            found[act.coding] = tuple(dict.fromkeys((*found.get(act.coding, ()), *act.sources)))
        return found

    @cached_property
    def serves(self) -> frozenset[str]:
        """The buckets of which this role has the authoritative weights, newer than those that workers read."""
        return frozenset(a.bucket for a in self.acts(Apply) if self.keeps == "server" or a.into is Space.SERVED)

    @cached_property
    def packed(self) -> frozenset[str]:
        """The buckets of whose gradients such a rank has a flat copy."""
        found = {act.bucket for act in self.acts(Combine)}
        found |= {act.bucket for act in self.acts(Decode) if act.into is Space.GRADIENT}
        found |= {act.bucket for act in self.acts(Pack) if act.space is Space.GRADIENT}
        found |= {act.bucket for act in self.acts(Receive) if act.space is Space.GRADIENT}
        found |= {act.bucket for act in self.acts(Apply) if act.need > 1 or act.drop}
        return frozenset(found | {NORM for _ in self.acts(Norm)})

    @cached_property
    def gates(self) -> dict[Gate, tuple[str, ...]]:
        """The members of each gate."""
        found = dict.fromkeys(i.gate for i in self.instructions if i.gate)
        return {gate: tuple(i.name for i in self.instructions if i.gate == gate) for gate in found}

    @cached_property
    def causes(self) -> dict[str, frozenset[str]]:
        """Instruction -> the names whose progress may let it start: its predecessors, the members of its gate and their
        predecessors, and itself, since it may be a message that arrives."""
        found = {i.name: frozenset((i.name, *(after.name for after in i.after))) for i in self.instructions}
        for members in self.gates.values():
            found |= dict.fromkeys(members, frozenset[str]().union(*(found[name] for name in members)))
        return found

    @cached_property
    def collective_before(self) -> dict[str, tuple[str, int]]:
        """Collective -> the previous collective of the same groups in its lane, and how many rounds ago that was. Only
        for lanes that go in the order of their text and skip nothing."""
        found: dict[str, tuple[str, int]] = {}
        for lane in self.lanes:
            alike: dict[object, list[str]] = {}
            for i in self.on(lane.name):
                if isinstance(i.act, Collective):
                    alike.setdefault(i.act.groups, []).append(i.name)
            if lane.policy is Policy.ORDER and not any(i.unless for i in self.on(lane.name)):
                found |= {name: (names[k - 1], int(not k)) for names in alike.values() for k, name in enumerate(names)}
        return found

    @cached_property
    def computing(self) -> tuple[bool, ...]:
        """Of each instruction, in program order, whether it moves nothing between ranks."""
        return tuple(not isinstance(i.act, Collective | Send | Receive) for i in self.instructions)

    @cached_property
    def leading(self) -> str:
        """The lane whose rounds are a rank's: the one that computes, otherwise the one that serves."""
        names = [lane.name for lane in self.lanes]
        return next((name for name in ("compute", "serve") if name in names), names[0])

    def acts(self, kind: type[A]) -> tuple[A, ...]:
        """The acts of one kind, in program order."""
        return tuple(i.act for i in self.instructions if isinstance(i.act, kind))

    def on(self, lane: str) -> tuple[Instruction, ...]:
        """The instructions of a lane, in program order."""
        return tuple(i for i in self.instructions if i.lane == lane)


@dataclass(frozen=True)
class Program:
    """One phase of a Plan. A round applies `steps` minibatches of `batch` samples; each gradient has `slots` copies.

    `semantics` is the class that `verify` tests it for: exact, delayed, lossy, consensus or racy. `stages` are the
    graphs of the segments that have a stage; other segments are of `whole`, or of the captured graph where there is
    none. `update` is what the instruction Update does. `deferred` names the batch statistics that only Settle updates.
    `scaling` is the loss scale of half precision. `compiled`: segments go through torch.compile.
    """

    name: str
    roles: tuple[Role, ...]
    segments: tuple[Segment, ...]
    buckets: tuple[Bucket, ...]
    batch: int
    steps: int = 1
    slots: int = 1
    semantics: str = "exact"
    stages: tuple[Graph, ...] = ()
    parcels: tuple[Parcel, ...] = ()
    update: Update = Update()
    deferred: tuple[str, ...] = ()
    codings: tuple[Coding, ...] = ()
    whole: Graph | None = None
    scaling: Scaling | None = None
    compiled: bool = False

    @cached_property
    def size(self) -> int:
        """The number of ranks."""
        return sum(len(role.ranks) for role in self.roles)

    @cached_property
    def role_of(self) -> dict[int, Role]:
        """Rank -> its role."""
        return {rank: role for role in self.roles for rank in role.ranks}

    @cached_property
    def length(self) -> int:
        """How many instructions all ranks together carry out in a round."""
        return sum(len(role.ranks) * len(role.instructions) for role in self.roles)

    @cached_property
    def drain(self) -> int:
        """How many rounds follow the last one, to apply what is still in flight."""
        return max((instruction.lag for _, instruction in self.instructions()), default=0)

    @cached_property
    def drops(self) -> bool:
        """Whether servers ignore late contributions."""
        return any(act.drop for act in self.acts(Apply))

    @cached_property
    def trained(self) -> tuple[Bucket, ...]:
        """The buckets that hold parameters: all but those of one number."""
        return tuple(bucket for bucket in self.buckets if bucket.pieces)

    @cached_property
    def dtype(self) -> str:
        """The dtype of the weights that segments compute with; "" without any."""
        return self.trained[0].dtype if self.trained else ""

    @cached_property
    def bucket(self) -> dict[str, Bucket]:
        """Bucket by name."""
        return {b.name: b for b in self.buckets}

    @cached_property
    def segment(self) -> dict[str, Segment]:
        """Segment by name."""
        return {s.name: s for s in self.segments}

    @cached_property
    def parcel(self) -> dict[str, Parcel]:
        """Parcel by name."""
        return {p.name: p for p in self.parcels}

    @cached_property
    def coding(self) -> dict[str, Coding]:
        """Coding by name."""
        return {c.name: c for c in self.codings}

    def cargo(self, act: Collective | Send | Receive) -> Bucket | Coding | Parcel:
        """The bucket, coding or parcel that an act moves."""
        if act.space is Space.CODED:
            return self.coding[act.bucket]
        return self.parcel[act.bucket] if act.space is Space.VALUE else self.bucket[act.bucket]

    def payload(self, act: Collective | Send | Receive) -> Bytes:
        """Bytes of the bucket, coding or parcel that an act moves."""
        cargo = self.cargo(act)
        return cargo.elements * cargo.item(act.space) if isinstance(cargo, Bucket) else cargo.size

    def extent(self, act: Collective, ranks: int) -> tuple[int, int]:
        """(elements, bytes an element) of the vector that a collective works on. Where codings are gathered, it holds
        one coding for each of the `ranks` members."""
        cargo = self.cargo(act)
        assert not isinstance(cargo, Parcel)
        many = ranks if act.kind is Kind.ALL_GATHER and act.space is Space.CODED else 1
        item = cargo.item(act.space) if isinstance(cargo, Bucket) else ITEMSIZE[cargo.dtype]
        return cargo.elements * many, item

    def edges(self, act: Collective) -> tuple[int, ...]:
        """The edges between the parts of that vector that ranks own, from 0 to its length; () if its parts are even."""
        cargo = self.cargo(act)
        if isinstance(cargo, Coding):
            return tuple(accumulate(cargo.parts, initial=0)) if cargo.parts else ()
        divided = isinstance(cargo, Bucket) and act.kind is not Kind.ALL_REDUCE
        return cargo.shares.edges if divided and isinstance(cargo, Bucket) and cargo.shares else ()

    def kept(self, role: Role) -> tuple[tuple[Space, str], ...]:
        """(space, bucket) of every tensor that the role's ranks keep from round to round besides parameters and
        gradients."""
        found: dict[tuple[Space, str], None] = {}
        for act in (i.act for i in role.instructions):
            if isinstance(act, Mix):
                found |= {(space, act.bucket): None for space in (act.into, *(term.space for term in act.terms))}
            elif isinstance(act, Collective | Send | Receive | Pack):
                found[act.space, act.bucket] = None
            elif isinstance(act, Encode):
                coding = self.coding[act.coding]
                found |= {(act.held, act.bucket): None} if coding.codec.error_feedback else {}
                found |= {(Space.BASIS, act.bucket): None} if coding.before else {}
            elif isinstance(act, Apply):
                found[act.into, act.bucket] = None
        return tuple((space, bucket) for space, bucket in found if space in KEPT)

    def stages_of(self, role: Role) -> tuple[int, ...]:
        """The stages whose segments a role runs; -1 stands for the whole graph."""
        return tuple(sorted({self.segment[act.segment].stage for act in role.acts(Compute)}))

    def graph_of(self, stage: int, captured: Graph) -> Graph:
        """The graph of a stage; with -1 that of the whole step, as captured unless lowering has rewritten it."""
        return (self.whole or captured) if stage < 0 else self.stages[stage]

    def instructions(self) -> Iterator[tuple[Role, Instruction]]:
        """Every instruction with its role."""
        for role in self.roles:
            for instruction in role.instructions:
                yield role, instruction

    def acts(self, kind: type[A]) -> tuple[A, ...]:
        """The acts of one kind of all roles, in program order."""
        return tuple(act for role in self.roles for act in role.acts(kind))
