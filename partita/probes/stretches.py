"""Stretches of a step: operators that follow one another, with made-up inputs for what lies before them.

What an operator takes depends on who ran before it. What it reads was written a moment ago or a step ago, and its code
was called a moment ago, by a neighbour of its kind, or not since the last step. So operators are timed where they stand
in a step, each by itself:

    graph     t addmm relu t addmm relu ... view mm mm t mm threshold ...        of a thousand operators
    stretch   |---------- 128 of them ---------|   those that have a kind which no earlier stretch has
    lead      ||                                   the first two are not timed, for what they read is made up

On a card, whose time hardly depends on that, each kind is a stretch of its own, with inputs that take turns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final

import torch

from partita.graph.graph import TANGENT, Graph
from partita.graph.patterns import shares_memory
from partita.graph.signature import signature
from partita.probes.bench import HOST, Bench
from partita.probes.inputs import made
from partita.runtime.device import CPU
from partita.runtime.draws import DRAWS
from partita.runtime.segment import Environment, Leaves, compile_segment, key, last_reads
from partita.units import Bytes

LEAD: Final = 2
FEW: Final = 160  # operators, of which every rank times all
COMMON: Final = 4, 32  # stretches that every rank times, and operators of each, at least
SETS: Final = 16
PLACE: Final = "@"  # begins the name of an operator in its place
Code = Callable[[Environment, Leaves], None]


@dataclass(frozen=True, eq=False)
class Stretch:
    """Operators `start` to `stop` of a graph whose sizes are numbers; those before `timed` are its lead."""

    graph: Graph
    timed: int
    stop: int
    lead: int = 0

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def start(self) -> int:
        """Its first operator."""
        return self.timed - self.lead

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The signature of each operator."""
        return tuple(signature(operator, self.graph) for operator in self.graph.operators[self.start : self.stop])

    @cached_property
    def places(self) -> tuple[str, ...]:
        """A name for each operator in its place, which is the same where the whole stretch is alike."""
        digest = hashlib.sha256("\n".join(self.kinds).encode()).hexdigest()[:16]
        return tuple(f"{PLACE}{digest}:{i}" for i in range(len(self.kinds)))

    def cut(self, length: int) -> Stretch:
        """The beginning of it, of so many operators at most."""
        return replace(self, stop=min(self.stop, self.timed + length))

    def apart(self) -> Iterator[Stretch]:
        """Its operators, each a stretch of its own."""
        return (Stretch(self.graph, i, i + 1) for i in range(self.timed, self.stop))


def stretches_of(graphs: Iterable[Graph], length: int, known: Collection[str] = ()) -> list[Stretch]:
    """Stretches of `length` operators that together have every kind of operator of the graphs that is not `known`; of
    one operator each, if that is the length."""
    seen, found = set(known), list[Stretch]()
    for graph in graphs:
        size = len(graph.operators)
        for at in range(0, size, length):
            block = Stretch(graph, at, min(at + length, size))
            fresh = [i for i, kind in enumerate(block.kinds, at) if kind not in seen]
            if fresh:
                found.append(Stretch(graph, fresh[0], block.stop, min(LEAD, fresh[0]) if length > 1 else 0))
                seen.update(found[-1].kinds)
    return found


def share_of(every: Sequence[Stretch], fresh: Sequence[Stretch], rank: int, world: int) -> list[Stretch]:
    """What a rank times of `every` stretch of some graphs, those that are not known being `fresh`: a part of these, and
    the same few whatever is known, by which ranks are compared."""
    own = fresh if sum(map(len, fresh)) <= FEW else fresh[rank::world]
    return list({one.places: one for one in (*shared_of(every), *own)}.values())


def shared_of(every: Sequence[Stretch]) -> list[Stretch]:
    """All stretches if they are few operators, or the beginnings of some."""
    few, length = COMMON
    several = max(few, length // max(map(len, every), default=1))
    small = sum(map(len, every)) <= FEW
    return [*every] if small else [one.cut(length) for one in every[:: max(len(every) // several, 1)]]


def comparable(every: Sequence[Stretch], known: Collection[str]) -> bool:
    """Whether times are known of what all ranks time, so that operators known from another day can be brought to now;
    without them all are timed again."""
    return {place for one in shared_of(every) for place in one.places[one.lead :]} <= set(known)


@dataclass(frozen=True, slots=True)
class Made:
    """A stretch that can run, in `places`: the code of each operator, and sets of made-up inputs (`size` bytes in all)
    that take turns; all sets have the same parameters, as in a step."""

    stretch: Stretch
    places: tuple[str, ...]
    codes: tuple[Code, ...]
    leaves: Leaves
    sets: tuple[Environment, ...]
    size: Bytes


def ending(graph: Graph, least: Bytes) -> Stretch:
    """The last operators of a step, which make that many bytes together, or all of it: what is ahead of an update."""
    at, size = len(graph.operators), 0
    while at and size < least:
        at -= 1
        fresh = not shares_memory(graph.operators[at], graph)
        size += sum(tensor.size(graph.batch) for tensor in graph.operators[at].outputs if tensor is not None and fresh)
    return Stretch(graph, at, len(graph.operators))


def acting(held: Iterable[Made]) -> Iterator[None]:
    """Carry out the operators of some stretches, one for each that is asked for."""
    for one in held:
        environment = dict(one.sets[0])
        for code in one.codes:
            yield code(environment, one.leaves)


def acted(held: Sequence[Made]) -> None:
    """Carry out all operators of some stretches."""
    for _ in acting(held):
        pass


def make(stretch: Stretch, bench: Bench = HOST) -> list[Made]:
    """A stretch that runs; or its operators one by one, in their places, if one of them does not take what the others
    make of made-up inputs. An operator that does not take these itself gets tamer ones, and one that takes none is
    timed as a copy of what it reads and makes."""
    whole = _made(stretch, bench)
    if bench.device != CPU or runs(whole):
        return [whole]
    if len(stretch.kinds) > 1:
        each = zip(stretch.apart(), stretch.places[stretch.lead :], strict=True)
        return [replace(one, places=(place,)) for alone, place in each for one in make(alone, bench)]
    whole = _made(stretch, bench, tame=True)
    return [whole if runs(whole) else replace(whole, codes=(_copying(whole.size // len(whole.sets)),))]


def _copying(size: Bytes) -> Code:
    """Reads half of so many bytes and writes them elsewhere."""
    from_, to = torch.zeros(2, max(size // 8, 1))

    def code(environment: Environment, leaves: Leaves) -> None:
        to.copy_(from_)

    return code


def runs(whole: Made) -> bool:
    """Whether each operator takes what those before it make of made-up inputs."""
    try:
        for inputs in whole.sets[:2]:
            environment = dict(inputs)
            for code in whole.codes:
                code(environment, whole.leaves)
    except (RuntimeError, ValueError, IndexError):
        return False
    return True


def _made(stretch: Stretch, bench: Bench, *, tame: bool = False) -> Made:
    """As many sets of activations as fill the bench's ring, at most 16."""
    graph, start, stop = stretch.graph, stretch.start, stretch.stop
    body, inputs = graph.operators[start:stop], dict(graph.inputs)
    reader = {ref: operator for operator in reversed(body) for ref in operator.reads()}
    given = {ref: o for ref, o in reader.items() if ref.name in graph.leaves or graph.index.get(ref.name, -1) < start}
    value = partial(made, device=bench.device, tame=tame)
    leaves = {ref.name: value(ref, o, graph) for ref, o in given.items() if ref.name in graph.leaves}
    moved = {ref: o for ref, o in given.items() if ref.name not in graph.leaves or ref.name in inputs}
    each = sum(graph.tensor(ref).size(graph.batch) for ref in moved)
    each += sum(t.size(graph.batch) for t in body[0].outputs if t is not None) if len(body) == 1 else 0
    count = max(1, min(SETS, bench.ring // max(each, 1)))
    fixed: Environment = {DRAWS: None} | {n: v for n, v in leaves.items() if n == TANGENT}
    sets = tuple(fixed | {key(ref): value(ref, o, graph) for ref, o in moved.items()} for _ in range(count))
    last = last_reads(graph) if len(body) > 1 else dict.fromkeys(last_reads(graph), len(graph.operators) + 1)
    codes = tuple(compile_segment(graph, i, i + 1, bench.device, last) for i in range(start, stop))
    return Made(stretch, stretch.places, codes, leaves, sets, each * count)
