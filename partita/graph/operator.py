"""One node of the captured step: an ATen call, what it reads and what it makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, TypeAlias

from partita.graph.tensor import Affine, Ratio, Tensor


class Phase(StrEnum):
    """The pass that an operator belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True, slots=True)
class Ref:
    """The value `name`; `index` picks one output of an operator that has several (-1: it has one)."""

    name: str
    index: int = -1

    def __hash__(self) -> int:
        return hash(self.name)  # a name keeps its own

    @property
    def key(self) -> str:
        """The value's name among others: `split[1]` for output 1 of `split`."""
        return self.name if self.index < 0 else f"{self.name}[{self.index}]"


@dataclass(frozen=True, slots=True)
class Symbol:
    """A literal that JSON lacks: `dtype:float32`, `device:`, `memory_format:contiguous_format`, `layout:strided`,
    `complex:1j`."""

    kind: str
    value: str


Argument: TypeAlias = "bool | int | float | str | Affine | Ratio | Ref | Symbol | tuple[Argument, ...] | None"


def references(argument: Argument) -> Iterator[Ref]:
    """Every Ref inside an argument, in order."""
    if isinstance(argument, Ref):
        yield argument
    elif isinstance(argument, tuple):
        for part in argument:
            yield from references(part)


@dataclass(frozen=True)
class Operator:
    """`outputs` holds one Tensor per result, None where a result is not computed.

    `several` tells `(out,)` from `out`. `module` is the path of the module that called it, `source` the user's
    file:line, `twin` the forward operator of which this backward operator takes the derivative ("" if none).
    """

    name: str
    target: str
    arguments: tuple[Argument, ...]
    keywords: tuple[tuple[str, Argument], ...] = ()
    outputs: tuple[Tensor | None, ...] = ()
    several: bool = False
    phase: Phase = Phase.FORWARD
    module: str = ""
    source: str = ""
    twin: str = ""

    def reads(self) -> Iterator[Ref]:
        """Every value that it reads, in the order of its arguments, then of its keywords."""
        return iter(self._read)

    @property
    def checks(self) -> bool:
        """Whether it makes nothing and only raises where what it reads is false."""
        return not any(self.outputs)

    def result(self, index: int) -> Ref:
        """Its output `index`, as others read it."""
        return Ref(self.name, index if self.several else -1)

    def results(self) -> Iterator[Ref]:
        """Every output that is computed, in order."""
        return (self.result(index) for index, tensor in enumerate(self.outputs) if tensor is not None)

    @cached_property
    def _read(self) -> tuple[Ref, ...]:
        return (*references(self.arguments), *(ref for _, value in self.keywords for ref in references(value)))


def reading(operator: Operator, taken: Callable[[Ref], Ref], **changes: Any) -> Operator:
    """The operator with `taken(ref)` in the place of everything that it reads, and these changes; itself where that is
    the same."""
    found = {ref: taken(ref) for ref in operator.reads()}
    if not changes and all(new is ref for ref, new in found.items()):
        return operator
    return replace(
        operator,
        arguments=tuple(_taken(argument, found.__getitem__) for argument in operator.arguments),
        keywords=tuple((name, _taken(value, found.__getitem__)) for name, value in operator.keywords),
        **changes,
    )


def _taken(argument: Argument, taken: Callable[[Ref], Ref]) -> Argument:
    if isinstance(argument, tuple):
        return tuple(_taken(part, taken) for part in argument)
    return taken(argument) if isinstance(argument, Ref) else argument
