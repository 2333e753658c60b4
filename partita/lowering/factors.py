"""Dense layers whose gradients travel as factors, layer by layer as the plan says.

to all       worker   give w    S0.w ..                      its own factors to every other
                      take w            I0.w ..              theirs
                      factors   P0.0  G0.1 P0.1 ..  A0       gradients made of them, summed in the order of the ranks
to servers   worker   push      S0                           instead of the gradient; weights come back as ever
             server   from w        I0.w
                      serve         G0.0 P0.0 .. C0  U0

A rank's own product is in its own step. All sum in the same order, their own part included, so replicas stay alike to
the bit. A layer has a bucket of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from partita.errors import PlanError
from partita.graph.graph import Graph
from partita.graph.products import Product, products, taken_apart
from partita.lowering.recomputation import with_again
from partita.plan.memory import Memory, Recompute
from partita.plan.plan import Plan, alone
from partita.plan.sync import AllReduce, Payload, Servers, Sync
from partita.program.instruction import After, Compute, Instruction, Pack, Receive, Send
from partita.program.space import Space


@dataclass(frozen=True)
class Factors:
    """The `step` that gives factors away, the graphs that multiply them, one a layer, and the number of each parameter;
    those of `served` ones go to servers."""

    step: Graph
    stages: tuple[Graph, ...] = ()
    layers: tuple[Product, ...] = ()
    served: frozenset[str] = frozenset()
    number: Mapping[str, int] = field(default_factory=dict)


def base_of(plan: Plan) -> Plan:
    """The plan with the agreement on gradients only, the last one."""
    factored = plan.sync and all(sync.payload is Payload.FACTOR for sync in plan.sync[:-1])
    return replace(plan, sync=plan.sync[-1:]) if factored else plan


def factors_of(graph: Graph, plan: Plan) -> Factors:
    """What the plan's agreements on factors name, the first match first, in the step that computes again what the plan
    says: a factor may be such a value. Raises PlanError for one that names no dense layer."""
    asked = [sync for sync in plan.sync[:-1] if sync.payload is Payload.FACTOR] if not alone(plan) else []
    if not asked:
        return Factors(graph)
    step = with_again(graph, plan)
    known, chosen, served = products(step), dict[str, Product](), set[str]()
    for sync in asked:
        named = [name for name in known if fnmatchcase(name, sync.parameters) and name not in chosen]
        if not any(fnmatchcase(name, sync.parameters) for name in known):
            raise PlanError(
                f"{plan.name} sends factors of {sync.parameters!r}, which is no dense layer's weight; there are "
                f"{', '.join(known) or 'none'}"
            )
        chosen |= {name: known[name] for name in named}
        served |= set(named) if isinstance(sync.through, Servers) else set()
    layers = tuple(product for name, product in known.items() if name in chosen)
    if not layers:
        return Factors(graph)
    given, stages = taken_apart(step, layers)
    number = {product.parameter: n for n, product in enumerate(layers)}
    return Factors(given, stages, layers, frozenset(served), number)


def factor_gaps(graph: Graph, plan: Plan) -> Iterator[tuple[bool, str]]:
    """(whether the plan asks for it, what) of all that does not go with factors."""
    base, asked = plan.sync[-1] if plan.sync else Sync(), plan.sync[:-1]
    factored = bool(asked) and all(sync.payload is Payload.FACTOR for sync in asked)
    yield bool(asked) and not factored, "more than one agreement"
    if not factored:
        return
    plain = replace(base, through=AllReduce(), wire=Sync().wire) == Sync()
    yield not plain, "factors beside anything but lockstep on gradients"
    through = base.through if isinstance(base.through, Servers) else None
    yield any(sync.through not in (AllReduce(), through) for sync in asked), "factors through other servers"
    yield through is not None and through.levels * through.replicas > 1, "factors through servers in levels"
    wire = base.wire
    yield bool(wire.codecs) or wire.order not in ("fifo", "priority") or wire.negotiate, "factors beside such a wire"
    yield through is not None and wire.order != "fifo", "factors beside messages in another order"
    kept = replace(plan.memory, recompute=Recompute.NONE, recomputed=(), budget=0.0)
    yield bool(plan.stages) or kept != Memory(), "factors with stages, or with a memory of their own"
    yield bool(graph.clip_norm) or graph.weight is not None, "factors of bounded or weighted gradients"


def parcel_of(number: int, count: int) -> str:
    """The factors of a layer for so many samples."""
    return f"f{number}/{count}"


@dataclass(frozen=True, slots=True)
class Layer:
    """A factored layer: its number, its bucket's, the samples of each worker's microbatches, and whether its factors go
    to a server."""

    number: int
    bucket: int
    counts: Mapping[int, tuple[int, ...]]
    served: bool = False

    @property
    def name(self) -> str:
        """The name of its bucket."""
        return f"b{self.bucket}"

    def sent(self, rank: int, peers: tuple[int, ...], lane: str, *, keeps: bool) -> list[Instruction]:
        """A worker's factors to each peer, microbatch by microbatch."""
        body = []
        for w in peers:
            for m, count in enumerate(self.counts[rank]):
                mark = f"#{m}" if len(self.counts[rank]) > 1 else ""
                key = f"{self.name}.{rank}.factors{mark}"
                act = Send(parcel_of(self.number, count), (w,), key, Space.VALUE, f"0.{m}", keeps)
                done = (After(f"B{self.bucket}{mark}"),)
                body.append(Instruction(f"S{self.bucket}.{w}{mark}", act, f"{lane}{w}", done))
        return body

    def shared(self, rank: int, last: str, free: tuple[After, ...] = ()) -> list[Instruction]:
        """A worker's factors to all others, and theirs."""
        peers = tuple(w for w in sorted(self.counts) if w != rank)
        return [*self.sent(rank, peers, "give", keeps=True), *self.gathered(rank, "take", "factors", last, free)]

    def gathered(self, rank: int, way: str, lane: str, last: str, free: tuple[After, ...] = ()) -> list[Instruction]:
        """All workers' factors, each by a lane `way`, and their products summed in the order of the ranks, once the
        bucket is `free`; the sum is there after `last`."""
        body: list[Instruction] = []
        sums: list[Instruction] = []
        for w, counts in sorted(self.counts.items()):
            for m, count in enumerate(counts):
                mark = f"#{m}" if len(counts) > 1 else ""
                if w == rank:
                    act, waits = Pack(self.name, f"0.{m}", bool(sums)), (After(f"B{self.bucket}{mark}"),)
                else:
                    part, label = f"f{self.number}.{w}.{m}", f"{self.bucket}.{w}{mark}"
                    key = f"{self.name}.{w}.factors{mark}"
                    came = Receive(parcel_of(self.number, count), (w,), key, Space.VALUE, part)
                    body.append(Instruction(f"I{label}", came, f"{way}{w}"))
                    made = Compute(f"G{self.number}/{count}", part)
                    body.append(Instruction(f"G{label}", made, lane, (After(f"I{label}"),)))
                    act, waits = Pack(self.name, part, bool(sums), self.number), (After(f"G{label}"),)
                ready = waits if sums else tuple(dict.fromkeys((*waits, *free)))
                sums.append(Instruction(f"P{self.bucket}.{w}{mark}", act, lane, ready))
                body.append(sums[-1])
        body[body.index(sums[-1])] = replace(sums[-1], name=last)
        return body
