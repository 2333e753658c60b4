"""Blocks of operators that a model repeats: layers of a transformer, forward and backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy

from partita.graph.graph import Graph, Repeat
from partita.graph.operator import Argument, Operator, Phase, Ref

PERIODS: Final = 12  # candidate lengths tried, the most frequent distances between like operators
SHORTEST: Final = 2  # operators in a block


def find_repeats(graph: Graph) -> tuple[Repeat, ...]:
    """Runs of at least two equal blocks, in order and without overlap, the ones that cover most first chosen.

    Blocks are equal if their operators have the same targets, literals and shapes, and read alike: from the same place
    in their own or the previous block, the same value in all, a leaf of the same shape, or, in the backward pass, from
    forward values that move by a constant number of operators from block to block.
    """
    tokens = _tokens(graph)
    sources = [tuple(_source(graph, ref) for ref in operator.reads()) for operator in graph.operators]
    taken = numpy.zeros(len(tokens), dtype=bool)
    found: list[Repeat] = []
    for phase in (slice(0, graph.forward_length), slice(graph.forward_length, len(tokens))):
        runs = [run for period in _periods(tokens[phase]) for run in _runs(graph, tokens, sources, period, phase)]
        for run in sorted(runs, key=lambda run: (-run.length * run.count, run.length, run.start)):
            region = slice(run.start, run.start + run.length * run.count)
            if not taken[region].any():
                taken[region] = True
                found.append(run)
    return tuple(sorted(found, key=lambda run: run.start))


def _tokens(graph: Graph) -> numpy.ndarray:
    """A number for each operator, equal where operators differ in names only."""
    numbers: dict[object, int] = {}
    leaves = graph.leaves
    keys = (_key(operator, leaves.keys()) for operator in graph.operators)
    return numpy.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=numpy.int64)


def _key(operator: Operator, leaves: object) -> object:
    literals = tuple(_literal(argument) for argument in operator.arguments)
    keywords = tuple((name, _literal(argument)) for name, argument in operator.keywords)
    return operator.target, literals, keywords, operator.outputs, operator.phase


def _literal(argument: Argument) -> object:
    """The argument without names; numbers keep their type, for 1, 1.0 and True are equal in Python."""
    if isinstance(argument, Ref):
        return Ref, argument.index
    if isinstance(argument, tuple):
        return tuple(_literal(part) for part in argument)
    return type(argument), argument


def _source(graph: Graph, ref: Ref) -> int:
    """The position that makes a value; leaves count below zero, alike if their shapes are."""
    made = graph.index.get(ref.name)
    return made if made is not None else -1 - hash(graph.leaves[ref.name]) % (1 << 60)


def _periods(tokens: numpy.ndarray) -> list[int]:
    """The most frequent distances from an operator to the next like it."""
    latest: dict[int, int] = {}
    distances: Counter[int] = Counter()
    for position, token in enumerate(tokens.tolist()):
        if token in latest:
            distances[position - latest[token]] += 1
        latest[token] = position
    return [distance for distance, _ in distances.most_common(PERIODS) if distance >= SHORTEST]


def _runs(
    graph: Graph, tokens: numpy.ndarray, sources: list[tuple[int, ...]], period: int, phase: slice
) -> Iterator[Repeat]:
    """Maximal stretches in which operator i and operator i + period are alike, at least one block long."""
    start, stop = phase.start, phase.stop
    begun, shift = start, 0
    for position in range(start, stop - period + 1):
        step = None
        if position < stop - period and tokens[position] == tokens[position + period]:
            step = _shift(graph, sources[position], sources[position + period], period, start, shift)
        if step is None:
            blocks = (position - begun) // period
            if blocks:
                yield Repeat(begun, period, blocks + 1)
            begun, shift = position + 1, 0
        else:
            shift = step


def _shift(graph: Graph, one: tuple[int, ...], other: tuple[int, ...], period: int, start: int, shift: int) -> int | None:
    """How far the forward values that a backward block reads move from block to block, None if the reads differ.

    0 is not known yet; in the forward pass it stays 0.
    """
    if len(one) != len(other):
        return None
    for a, b in zip(one, other, strict=True):
        if a == b or b - a == period and a >= 0:
            continue
        backward = start > 0 and 0 <= a < start and 0 <= b < start
        if not backward or (shift and b - a != shift):
            return None
        shift = b - a
    return shift
