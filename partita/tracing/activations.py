"""Activations that a model composes of powers, products and tanh, told as the kernel that torch has for them.

    a = x * 0.5      b = tanh(c * (x + d * x ** 3))      y = a * (b + 1)      ->      y = gelu(x, approximate="tanh")

The kernel reads x and writes y, and its backward needs x alone; composed, each operator goes through memory, most
results are kept for backward, and in half precision powers are taken in fp32. How a model writes it down does not
matter: what a chain makes of one value is looked at on numbers, and what autograd made of the chain goes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import torch
from torch.nn import functional

from partita.graph.formula import kind_of
from partita.graph.graph import Graph
from partita.graph.homes import homes_of
from partita.graph.operator import Argument, Operator, Ref
from partita.graph.patterns_pointwise import POINTWISE
from partita.graph.tensor import PRECISION_OF
from partita.tracing.calls import call_of
from partita.tracing.convert import tidy

CORES: Final = frozenset(f"aten.{name}" for name in ("tanh", "erf", "sigmoid"))  # one of which each chain has
LONGEST: Final = 16  # operators of a chain
NEAR: Final = torch.linspace(-12.0, 12.0, 769, dtype=torch.float64)
FAR: Final = torch.logspace(1.1, 30.0, 128, dtype=torch.float64)  # what is clamped shows there
NUMBERS: Final = torch.cat([-FAR.flip(0), NEAR, FAR])
SLOPES: Final = torch.linspace(0.0, 72.0, len(NUMBERS), dtype=torch.float64).cos()
CLOSE: Final = 1e-11  # constants may be written with ten digits


@dataclass(frozen=True, slots=True)
class Activation:
    """A function that has a kernel, and the operators of its two passes."""

    function: Callable[[torch.Tensor], torch.Tensor]
    name: str
    told: tuple[tuple[str, Argument], ...] = ()


KNOWN: Final = (
    Activation(lambda x: functional.gelu(x, approximate="tanh"), "gelu", (("approximate", "tanh"),)),
    Activation(functional.gelu, "gelu"),
    Activation(functional.silu, "silu"),
)


def told_activations(graph: Graph) -> Graph:
    """The step in which every known activation is one operator in forward and one in backward."""
    cores = [o for o in graph.operators[: graph.forward_length] if kind_of(o.target) in CORES]
    told: dict[str, Operator] = {}
    teller = _Teller(graph)
    for core in cores:
        told |= next(filter(None, (teller.told(*chain) for chain in teller.chains(core))), {})
    return tidy(replace(graph, operators=tuple(told.get(o.name, o) for o in graph.operators))) if told else graph


@dataclass(frozen=True)
class _Teller:
    """Lives for one call of `told_activations`."""

    graph: Graph

    @cached_property
    def readers(self) -> dict[str, list[int]]:
        """Of each maker or leaf the places of the operators that read it."""
        return homes_of(self.graph).readers

    @cached_property
    def behind(self) -> dict[str, list[int]]:
        """Of each forward operator the places of those that take its derivative."""
        found: dict[str, list[int]] = {}
        for place in range(self.graph.forward_length, len(self.graph.operators)):
            found.setdefault(self.graph.operators[place].twin, []).append(place)
        return found

    @cached_property
    def results(self) -> frozenset[str]:
        return frozenset(ref.name for ref in self.graph.results())

    def chains(self, core: Operator) -> Iterator[tuple[Ref, list[Operator]]]:
        """(value, operators that make another of it alone, a core among them); the longest of the farthest value
        first."""
        for given in reversed([*self.givens(core)]):
            inside = self.of_one(given)
            for last in reversed(inside):
                needed = {last.name}
                for operator in reversed(inside):
                    needed |= {ref.name for ref in operator.reads()} if operator.name in needed else set()
                if core.name in needed:
                    yield given, [o for o in inside if o.name in needed]

    def givens(self, core: Operator) -> Iterator[Ref]:
        """The values of which each alone decides what a core makes, the nearest first."""
        index, waiting = self.graph.index, {core.result(0)}
        for _ in range(LONGEST):
            latest = max(waiting, key=lambda ref: index.get(ref.name, -1))  # so that ways from one value meet there
            place = index.get(latest.name, -1)
            if place < 0 or not _plain(self.graph.operators[place]):
                return
            waiting = (waiting - {latest}) | set(self.graph.operators[place].reads())
            if len(waiting) == 1:
                yield next(iter(waiting))

    def of_one(self, given: Ref) -> list[Operator]:
        """Forward operators that read nothing but a value and what each other make of it."""
        made, found = {given}, list[Operator]()
        waiting = {*self.readers.get(given.name, ())}
        while waiting and len(found) < LONGEST:
            place = min(waiting)
            waiting.discard(place)
            operator = self.graph.operators[place]
            if place < self.graph.forward_length and _plain(operator) and made.issuperset(operator.reads()):
                found.append(operator)
                made.add(operator.result(0))
                waiting.update(self.readers.get(operator.name, ()))
        return found

    def told(self, given: Ref, chain: list[Operator]) -> dict[str, Operator]:
        """By the names of what they stand for, the operators of the activation that a chain is; none where it is none,
        or where somebody looks inside."""
        last, names, spec = chain[-1], {o.name for o in chain}, self.graph.tensor(given)
        places = sorted(place for name in names for place in self.behind.get(name, ()))
        back = [self.graph.operators[place] for place in places]
        seen = any(self.leaves(o, {*names, *(b.name for b in back)}) for o in chain[:-1])
        if seen or spec.dtype not in PRECISION_OF or spec != self.graph.tensor(last.result(0)):
            return {}
        values: dict[Argument, Any] = {given: NUMBERS}
        _work_out(chain, values)
        made = values[last.result(0)]
        for known in KNOWN:
            if _alike(made, known.function(NUMBERS)):
                one = replace(last, target=f"aten.{known.name}.default", arguments=(given,), keywords=known.told)
                return self.with_slope(known, given, one, back, values) if back else {last.name: one}
        return {}

    def with_slope(
        self, known: Activation, given: Ref, told: Operator, back: list[Operator], values: dict[Argument, Any]
    ) -> dict[str, Operator]:
        """The operators in place of a chain and of `back`, its backward pass, by name; none where `back` adds up more
        than the derivative of the activation."""
        names = {o.name for o in back}
        slopes = {ref for o in back for ref in o.reads() if ref.name not in names} - values.keys()
        ends = [o for o in back if self.leaves(o, names)]
        like = {self.graph.tensor(ref) for ref in (given, *slopes, *(o.result(0) for o in (told, *ends)))}
        if (len(slopes), len(ends), len(like)) != (1, 1, 1) or not all(map(_plain, back)):
            return {}
        (slope,), (end,), target = slopes, ends, f"aten.{known.name}_backward.default"
        one = replace(end, target=target, arguments=(slope, given), keywords=known.told, twin=told.name)
        values[slope] = SLOPES
        _work_out(back, values)
        summed = values[end.result(0)]
        _work_out([one], values)
        return {told.name: told, end.name: one} if _alike(summed, values[end.result(0)]) else {}

    def leaves(self, operator: Operator, names: Container[str]) -> bool:
        """Whether anybody but `names` has a use for what an operator makes."""
        readers = (self.graph.operators[place] for place in self.readers.get(operator.name, ()))
        return operator.name in self.results or any(reader.name not in names for reader in readers)


def _plain(operator: Operator) -> bool:
    """Whether it is pointwise, of one or several values and of numbers."""
    numbers = all(isinstance(a, Ref | int | float) for a in operator.arguments)
    known = operator.target.startswith("aten.") and kind_of(operator.target) in POINTWISE
    return known and numbers and not operator.keywords and not operator.several


def _work_out(chain: list[Operator], values: dict[Argument, Any]) -> None:
    """Add what operators make of numbers to `values`."""
    for operator in chain:
        given = (values.get(argument, argument) for argument in operator.arguments)
        values[operator.result(0)] = call_of(operator.target)(*given, **dict(operator.keywords))


def _alike(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return bool(((found - wanted).abs() <= NUMBERS.abs().clamp_min(1.0) * CLOSE).all())
