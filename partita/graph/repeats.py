"""Blocks of operators that a model repeats: layers of a transformer, forward and backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, TypeAlias

import numpy

from partita.graph.graph import Graph, Repeat
from partita.graph.operator import Argument, Operator, Ref

PERIODS: Final = 12  # candidate lengths tried, the most frequent distances between like operators
SHORTEST: Final = 2  # operators in a block
DROPPING: Final = "partita._scaled_dot_product_dropout_attention.default"
DROPPING_BACKWARD: Final = "partita._scaled_dot_product_dropout_attention_backward.default"
DRAW: Final = {  # place of the key that tells random draws apart, a name
    "partita.dropout": 2, "partita.random": 0, DROPPING: 7,
}  # fmt: skip


def find_repeats(graph: Graph) -> tuple[Repeat, ...]:
    """Runs of at least two equal blocks within the forward or the backward pass, in order and without overlap.

    Blocks are equal if operator by operator they have the same target, literals and shapes in and out, and read what
    the block itself makes from the same place in it; what comes from before the block may come from anywhere. Keys of
    random draws count as names. Runs that cover most are chosen first.
    """
    tokens, sources = tokens_of(graph), [_sources(graph, operator) for operator in graph.operators]
    taken = numpy.zeros(len(tokens), dtype=bool)
    found: list[Repeat] = []
    for start, stop in ((0, graph.forward_length), (graph.forward_length, len(tokens))):
        runs = [run for period in _periods(tokens[start:stop]) for run in _runs(tokens, sources, period, start, stop)]
        for run in sorted(runs, key=lambda run: (-run.length * run.count, run.length, run.start)):
            region = slice(run.start, run.start + run.length * run.count)
            if not taken[region].any():
                taken[region] = True
                found.append(run)
    return tuple(sorted(found, key=lambda run: run.start))


def tokens_of(graph: Graph) -> list[int]:
    """A number for each operator, equal where operators differ in names only."""
    numbers: dict[object, int] = {}
    keys = (_key(graph, operator) for operator in graph.operators)
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _key(graph: Graph, operator: Operator) -> object:
    key = DRAW.get(operator.target, -1)
    literals = tuple(_literal(argument) for place, argument in enumerate(operator.arguments) if place != key)
    keywords = tuple((name, _literal(argument)) for name, argument in operator.keywords)
    return operator.target, literals, keywords, tuple(graph.tensor(ref) for ref in operator.reads()), operator.outputs


def _literal(argument: Argument) -> object:
    """The argument without names; numbers keep their type, for 1, 1.0 and True are equal in Python."""
    if isinstance(argument, Ref):
        return Ref
    if isinstance(argument, tuple):
        return tuple(_literal(part) for part in argument)
    return type(argument), argument


Source: TypeAlias = tuple[int, int]  # position of the operator that makes a value (-1: a leaf), which of its outputs


def _sources(graph: Graph, operator: Operator) -> tuple[Source, ...]:
    return tuple((graph.index.get(ref.name, -1), ref.index) for ref in operator.reads())


def _periods(tokens: list[int]) -> list[int]:
    """The most frequent distances from an operator to the next like it."""
    latest: dict[int, int] = {}
    distances: Counter[int] = Counter()
    for position, token in enumerate(tokens):
        if token in latest:
            distances[position - latest[token]] += 1
        latest[token] = position
    return [distance for distance, _ in distances.most_common(PERIODS) if distance >= SHORTEST]


def _runs(tokens: list[int], sources: list[tuple[Source, ...]], period: int, start: int, stop: int) -> Iterator[Repeat]:
    """Maximal stretches in which operators i and i + period are alike, at least one block long."""
    begun = start
    for position in range(start, stop - period + 1):
        block = begun + (position - begun) // period * period
        alike = position + period < stop and tokens[position] == tokens[position + period]
        if alike and _read_alike(sources[position], sources[position + period], block, period):
            continue
        blocks = (position - begun) // period
        if blocks:
            yield Repeat(begun, period, blocks + 1)
        begun = position + 1


def _read_alike(one: tuple[Source, ...], other: tuple[Source, ...], block: int, period: int) -> bool:
    """Whether operators of the block at `block` and of the next read the same places inside their blocks."""
    for (a, first), (b, second) in zip(one, other, strict=True):
        inside = a >= block
        if inside != (b >= block + period) or (inside and (b - a != period or first != second)):
            return False
    return True
