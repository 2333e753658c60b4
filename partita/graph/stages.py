"""A step divided into stages: a run of forward operators each, with all of backward that serves them.

             stage 0       stage 1       stage 2
forward      a  b  c --c-> d  e ---e---> f  loss          f also reads c: one more message, stage 0 -> 2
backward     A  B  C <-C'- D  E <--E'--- F                what only the stage's own gradients read may wait (W)

A stage is a Graph. What it takes from outside, samples and other stages' values, are its inputs, named `value>stage`;
what it gives away are its `sends`, under the names that the takers know. Values go straight from where they are made
to every stage that reads them: forwarded along the chain they would cross more links and be held on the way.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from partita.graph.graph import TANGENT, Graph
from partita.graph.homes import homes_of
from partita.graph.operator import Operator, Phase, Ref, reading
from partita.graph.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Crossing:
    """Values that go from one stage to another with its forward or backward pass, by the names that the taker knows."""

    source: int
    target: int
    phase: Phase
    values: tuple[str, ...]


@dataclass(frozen=True)
class Partition:
    """The stages' graphs; where in each one backward's second part W begins; what crosses between them; and for each
    parameter the stages that hold it, several where it is tied over a cut."""

    stages: tuple[Graph, ...]
    parts: tuple[int, ...]
    crossings: tuple[Crossing, ...]
    holders: tuple[tuple[str, tuple[int, ...]], ...]


def divide(graph: Graph, starts: Sequence[int], *, separate: bool = False) -> Partition:
    """The graph cut before the forward operators at `starts` (the first one is 0).

    Backward goes with its forward operators, and never up: what a later stage reads is made there. A tied parameter's
    gradient is summed on each stage by itself. `separate` puts what only a stage's own gradients need, W, behind all
    else of its backward pass (Qi et al. 2024).
    """
    cutter = _Cutter(graph, tuple(starts))
    made = [cutter.stage(number) for number in range(len(starts))]
    sends: dict[int, list[tuple[str, Ref]]] = {}
    for name, (source, ref) in cutter.sent.items():
        sends.setdefault(source, []).append((name, ref))
    stages = [replace(stage, sends=tuple(sends.get(n, ()))) for n, stage in enumerate(made)]
    parts = [_waiting(stage) if separate else (stage, len(stage.operators)) for stage in stages]
    crossings = tuple(Crossing(*key, tuple(values)) for key, values in sorted(cutter.crossings.items()))
    return Partition(
        tuple(stage for stage, _ in parts),
        tuple(part for _, part in parts),
        crossings,
        tuple((p.name, tuple(sorted(cutter.holders[p.name]))) for p in graph.parameters),
    )


class _Cutter:
    """What one call of `divide` finds out: the stage of every operator (-1: none), then the stages one by one."""

    def __init__(self, graph: Graph, starts: tuple[int, ...]) -> None:
        self.graph, self.homes = graph, homes_of(graph)
        self.at = [bisect_right(starts, home) - 1 for home in self.homes.home]
        self.spread: dict[str, dict[int, list[Ref]]] = {}
        self.sums: dict[str, tuple[str, ...]] = {}
        self.crossings: dict[tuple[int, int, Phase], list[str]] = {}
        self.sent: dict[str, tuple[int, Ref]] = {}
        self._place()
        self.holders = self._holders()
        self.own: list[list[int]] = [[] for _ in starts]
        for i, stage in enumerate(self.at):
            if stage >= 0 and graph.operators[i].name not in self.homes.free:
                self.own[stage].append(i)

    def _place(self) -> None:
        graph, homes = self.graph, self.homes
        found = {parameter: homes.summed(ref) for parameter, ref in graph.gradients}
        loose = homes.free | {name for _, names in found.values() for name in names}
        for i in reversed(range(graph.forward_length, len(graph.operators))):
            if graph.operators[i].name not in loose:
                taken = (j for j in homes.readers.get(graph.operators[i].name, ()) if j > i)
                self.at[i] = max([self.at[i], *(self.at[j] for j in taken if graph.operators[j].name not in loose)])
        for parameter, (values, names) in found.items():
            by_stage: dict[int, list[Ref]] = {}
            for value in values:
                by_stage.setdefault(self.stage_of(value), []).append(value)
            for name in names:
                self.at[graph.index[name]] = next(iter(by_stage)) if len(by_stage) == 1 else -1
            if len(by_stage) > 1:
                self.spread[parameter], self.sums[parameter] = by_stage, names

    def stage_of(self, ref: Ref) -> int:
        """The stage that makes a value, or first reads a leaf."""
        if ref.name in self.graph.index:
            return self.at[self.graph.index[ref.name]]
        return min((self.at[j] for j in self.homes.readers.get(ref.name, ()) if self.at[j] >= 0), default=0)

    def _holders(self) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        for p in self.graph.parameters:
            readers = {self.at[j] for j in self.homes.readers.get(p.name, ())}
            found[p.name] = {stage for stage in readers if stage >= 0} | set(self.spread.get(p.name, ()))
        for parameter, ref in self.graph.gradients:
            found[parameter] |= set() if parameter in self.spread else {self.stage_of(ref)}
        return {name: stages or {0} for name, stages in found.items()}

    def stage(self, number: int) -> Graph:
        """The Graph of a stage, but for what it sends, which is known when all stages have been asked."""
        graph, inputs = self.graph, _Inputs(self, number)
        places = self._members(number)
        operators = {place: _renamed(graph.operators[place], inputs) for place in places}
        gradients, extra = self._gradients(number, inputs)
        order: list[tuple[int, Operator]] = sorted([*operators.items(), *extra], key=lambda one: one[0])
        mine = tuple(operator for _, operator in order)
        reads = {ref.name for operator in mine for ref in operator.reads()}
        mutations = tuple((b, ref) for b, ref in graph.mutations if self.stage_of(ref) == number)
        reads |= {buffer for buffer, _ in mutations}
        weight = inputs.taken(graph.weight) if graph.weight and self.stage_of(graph.weight) == number else None
        reads |= {weight.name} if weight else set()
        idle = {b.name for b in graph.buffers if not number and b.name not in self.homes.readers}
        return replace(
            graph, name=f"{graph.name}#{number}", operators=mine, gradients=gradients, mutations=mutations, repeats=(),
            weight=weight,
            parameters=tuple(p for p in graph.parameters if number in self.holders[p.name]),
            buffers=tuple(b for b in graph.buffers if b.name in reads | idle),
            constants=tuple(c for c in graph.constants if c.name in reads),
            inputs=tuple(inputs.found.items()),
        )  # fmt: skip

    def _members(self, number: int) -> set[int]:
        """Places of a stage's own operators and of the free ones that they read."""
        graph, free = self.graph, self.homes.free
        found, wanted = set(self.own[number]), list(self.own[number])
        while wanted:
            for ref in graph.operators[wanted.pop()].reads():
                if ref.name in free and graph.index[ref.name] not in found:
                    found.add(graph.index[ref.name])
                    wanted.append(graph.index[ref.name])
        return found

    def _gradients(
        self, number: int, inputs: _Inputs
    ) -> tuple[tuple[tuple[str, Ref], ...], list[tuple[int, Operator]]]:
        """The stage's gradients, and the additions, with their places, that a tied parameter's part needs."""
        gradients, extra = [], []
        for parameter, ref in self.graph.gradients:
            if parameter not in self.spread:
                if self.stage_of(ref) == number:
                    gradients.append((parameter, inputs.taken(ref)))
            elif number in self.spread[parameter]:
                values = self.spread[parameter][number]
                place = max(self.graph.index.get(value.name, self.graph.forward_length) for value in values)
                first, *others = (inputs.taken(value) for value in values)  # one may be what seeds backward
                for name, other in zip(self.sums[parameter], others, strict=False):
                    like = self.graph.operators[self.graph.index[name]]
                    extra.append((place, replace(like, name=f"{name}@{number}", arguments=(first, other))))
                    first = Ref(f"{name}@{number}")
                gradients.append((parameter, first))
        return tuple(gradients), extra


class _Inputs:
    """The names by which a stage knows what it reads, and what of it comes from outside."""

    def __init__(self, cutter: _Cutter, number: int) -> None:
        self.cutter, self.number = cutter, number
        self.outside = {name for name, _ in cutter.graph.inputs} | {TANGENT}
        self.found: dict[str, Tensor] = {}

    def taken(self, ref: Ref) -> Ref:
        cutter, graph, number = self.cutter, self.cutter.graph, self.number
        if ref.name in cutter.homes.free:
            return replace(ref, name=f"{ref.name}@{number}")
        inside = ref.name in graph.index and cutter.stage_of(ref) == number
        if inside or (ref.name not in graph.index and ref.name not in self.outside):
            return ref
        name = f"{ref.key}>{number}"
        if name not in self.found and ref.name in graph.index:
            source, phase = cutter.stage_of(ref), graph.operators[graph.index[ref.name]].phase
            phase = phase if source < number else Phase.BACKWARD
            cutter.crossings.setdefault((source, number, phase), []).append(name)
            cutter.sent[name] = (source, ref)
        self.found[name] = graph.tensor(ref)
        return Ref(name)


def _renamed(operator: Operator, inputs: _Inputs) -> Operator:
    free = operator.name in inputs.cutter.homes.free
    read = reading(operator, inputs.taken)
    return replace(read, name=f"{operator.name}@{inputs.number}") if free else read


def _waiting(stage: Graph) -> tuple[Graph, int]:
    """The stage with W behind, and where it begins.

    W is all of backward that nothing sent depends on; on a stage that sends nothing back, what leads to one gradient
    only.
    """
    first, operators = stage.forward_length, stage.operators
    sent = {ref.name for _, ref in stage.sends if stage.index[ref.name] >= first}
    leads = {ref.name: 1 << n for n, (_, ref) in enumerate(stage.gradients)}
    now: set[int] = set()
    for i in reversed(range(first, len(operators))):
        name = operators[i].name
        urgent = name in sent if sent else leads.get(name, 0).bit_count() > 1
        if urgent:
            now.add(i)
        for ref in operators[i].reads():
            leads[ref.name] = leads.get(ref.name, 0) | leads.get(name, 0)
            if urgent and sent:
                sent.add(ref.name)
    late = [i for i in range(first, len(operators)) if i not in now]
    order = [*range(first), *sorted(now), *late]
    return replace(stage, operators=tuple(operators[i] for i in order)), len(operators) - len(late)
