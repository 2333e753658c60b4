"""Patterns written the short way: `formula(call, {0: "n i", 1: "i o"}, ["n o"], work="2 n i o")`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Final, TypeAlias

from partita.graph.graph import Graph
from partita.graph.operator import Argument, Operator, Ref
from partita.graph.pattern import Axes, Extent, Label, Monoid, Output, Pattern, Role, Window, Work
from partita.graph.tensor import Affine, Dim, Tensor

Path: TypeAlias = tuple[int | str, ...]
Inputs: TypeAlias = dict[int | Path, str | Axes]  # by place or path in the arguments

ROLES: Final = {
    "n": Role.SAMPLE, "o": Role.OUTPUT, "i": Role.REDUCE, "c": Role.CHANNEL, "f": Role.FEATURE, "h": Role.HEAD,
    "g": Role.GROUP, "y": Role.HEIGHT, "x": Role.WIDTH, "z": Role.DEPTH, "s": Role.SEQUENCE, "t": Role.CONTEXT,
    "v": Role.VOCABULARY, "e": Role.EXPERT,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """An operator with the shapes of what it reads."""

    operator: Operator
    graph: Graph

    @property
    def kind(self) -> str:
        """The target without its overload: `aten.mm`."""
        return kind_of(self.operator.target)

    def argument(self, place: int, default: Argument = None) -> Argument:
        """The positional argument at a place, `default` where there are fewer."""
        arguments = self.operator.arguments
        return arguments[place] if place < len(arguments) else default

    def integers(self, place: int, default: Argument = ()) -> tuple[int, ...]:
        """A literal that is a number or a list of numbers, as a tuple."""
        found = self.argument(place, default)
        items = found if isinstance(found, tuple) else (found,)
        return tuple(item for item in items if isinstance(item, int))

    def tensor(self, place: int) -> Tensor | None:
        """The tensor at an argument, None where it is something else."""
        found = self.argument(place)
        return self.graph.tensor(found) if isinstance(found, Ref) else None

    def output(self, place: int = 0) -> Tensor | None:
        """The tensor that the operator makes at a place, None where it makes none."""
        outputs = self.operator.outputs
        return outputs[place] if place < len(outputs) else None

    def reads(self) -> Iterator[tuple[Path, Ref]]:
        """Every Ref with its path in the arguments, in the order of `Operator.reads`."""
        for place, argument in enumerate(self.operator.arguments):
            yield from _refs((place,), argument)
        for name, argument in self.operator.keywords:
            yield from _refs((name,), argument)


def _refs(path: Path, argument: Argument) -> Iterator[tuple[Path, Ref]]:
    if isinstance(argument, Ref):
        yield path, argument
    elif isinstance(argument, tuple):
        for place, part in enumerate(argument):
            yield from _refs((*path, place), part)


@lru_cache(maxsize=4096)
def kind_of(target: str) -> str:
    """`"aten.mm.default"` -> `"aten.mm"`."""
    return ".".join(target.split(".")[:2])


@lru_cache(maxsize=4096)
def axes(text: str) -> Axes:
    """`"n (h d) ."` -> (("n",), ("h", "d"), ()); a dot is a dimension without labels."""
    found = re.findall(r"\(([^)]*)\)|(\S+)", text)
    return tuple(tuple(group.split()) if not one else (() if one == "." else (one,)) for group, one in found)


def _extents(pairs: Iterator[tuple[Axes, Tensor]], known: Mapping[str, Dim]) -> dict[str, Dim]:
    """The size of every label: of a dimension of its own where it has one, by division where it shares one."""
    sizes, shared = dict(known), []
    for labels, tensor in pairs:
        for dim, size in zip(labels, tensor.shape, strict=True):
            if len(dim) == 1:
                sizes.setdefault(dim[0], size)
            elif dim:
                shared.append((dim, size))
    for dim, size in shared:
        unknown = [name for name in dim if name not in sizes]
        if len(unknown) == 1:
            others = prod(s for name in dim if isinstance(s := sizes.get(name, 1), int))
            sizes[unknown[0]] = (
                Affine(size.each // others, size.rest // others) if isinstance(size, Affine) else size // others
            )
    return sizes


def _work(text: str) -> tuple[Work, ...]:
    """`"2 n i o + 1 n"` -> two terms."""
    terms = (term.split() for term in text.split("+") if term.strip())
    return tuple(Work(float(term[0]), tuple(term[1:])) for term in terms)


def _partial(made: Axes, read: set[str], monoids: Mapping[str, Monoid | None]) -> tuple[tuple[str, Monoid], ...]:
    kept = {name for dim in made for name in dim}
    missing = sorted(read - kept)
    return tuple((name, monoid) for name in missing if (monoid := monoids.get(name, Monoid.SUM)) is not None)


@dataclass(frozen=True, slots=True)
class Bound:
    """Axes that fit a call's tensors: of what it reads (by path) and makes, and the size of every label."""

    places: dict[Path, int]
    read: tuple[Axes, ...]
    made: tuple[Axes | None, ...]
    extents: dict[str, Dim]


def _bound(call: Call, inputs: Inputs, outputs: Sequence[str | Axes | None], sizes: Mapping[str, Dim]) -> Bound | None:
    given = {_path(place): axes(text) if isinstance(text, str) else text for place, text in inputs.items()}
    reads = [(path, call.graph.tensor(ref)) for path, ref in call.reads()]
    read = [given.get(path, ((),) * len(tensor.shape)) for path, tensor in reads]
    written = [axes(text) if isinstance(text, str) else text for text in outputs]
    made = [None if call.output(place) is None else one for place, one in enumerate(written)]
    pairs = [(a, t) for a, t in zip(made, call.operator.outputs, strict=False) if a is not None and t is not None]
    pairs += zip(read, (tensor for _, tensor in reads), strict=True)
    if any(len(a) != len(t.shape) for a, t in pairs):
        return None
    found, order = _extents(iter(pairs), sizes), _names(a for a, _ in pairs)
    if any(name not in found for name in order):
        return None
    places = {path: number for number, (path, _) in enumerate(reads)}
    return Bound(places, tuple(read), tuple(made), {name: found[name] for name in order})


def formula(
    call: Call, inputs: Inputs, outputs: Sequence[str | Axes | None], *,
    work: str = "", roles: Mapping[str, Role] | None = None, sizes: Mapping[str, Dim] | None = None, locked: str = "",
    exchange: Mapping[str, Monoid] | None = None, indexed: str = "", windows: Mapping[str, Window] | None = None,
    monoids: Mapping[int, Mapping[str, Monoid | None]] | None = None,
    extents: Sequence[tuple[tuple[int, ...], str]] = (), added: Sequence[int] = (),
) -> Pattern | None:  # fmt: skip
    """The pattern of a call; None where the axes do not fit the tensors.

    `inputs` maps argument places (or paths) to axes, other tensors have none. An output that lacks a label which some
    input has is partial by SUM, or by what `monoids[output][label]` says (None: independent of it). `added` names
    argument places; `extents` literals that are sizes; `locked` labels do not divide.
    """
    bound = _bound(call, inputs, outputs, sizes or {})
    if bound is None:
        return None
    fixed, steered, free, places = locked.split(), indexed.split(), monoids or {}, bound.places
    joined = set(_names(bound.read)) - set(fixed)
    roles, exchange, windows = roles or {}, exchange or {}, windows or {}
    return Pattern(
        tuple(
            Label(n, size, _role(n, size, roles), n not in fixed, exchange.get(n), n in steered, windows.get(n))
            for n, size in bound.extents.items()
        ),
        bound.read,
        tuple(None if a is None else Output(a, _partial(a, joined, free.get(k, {}))) for k, a in enumerate(bound.made)),
        _work(work),
        tuple(Extent(path, names) for path, text in extents if (names := tuple(text.split()))),
        tuple(places[(place,)] for place in added if (place,) in places),
    )


def _names(several: Iterable[Axes]) -> list[str]:
    """Every label once, in the order of appearance."""
    return list(dict.fromkeys(name for one in several for dim in one for name in dim))


def _path(place: int | Path) -> Path:
    return place if isinstance(place, tuple) else (place,)


def _role(name: str, extent: Dim, roles: Mapping[str, Role]) -> Role:
    """A dimension that follows the batch is the sample's, whatever else it is."""
    return (
        Role.SAMPLE if isinstance(extent, Affine) and extent.each else roles.get(name, ROLES.get(name[0], Role.PLACE))
    )
