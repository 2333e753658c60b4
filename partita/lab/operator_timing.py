"""Operators timed in rotation, as in a step: none finds its own code and data in the cache.

A loop over one operator is too optimistic: in a step an operator reads what was written a while ago, writes to memory
that was freed a while ago, and a hundred other operators ran since its last call. So all operators of a list are run
one after the other, on made-up inputs, pass after pass. Their memory is mapped before the first pass, as a step's
memory was mapped by earlier steps, and results are freed after each call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, pstdev
from typing import Any, Final

import torch

from partita.graph.graph import TANGENT, Graph
from partita.lab.bench import HOST, Bench
from partita.lab.inputs import made
from partita.runtime.device import CPU
from partita.runtime.draws import DRAWS
from partita.runtime.heap import fault_in
from partita.runtime.segment import Environment, Leaves, compile_segment, key, last_reads
from partita.units import Bytes, Seconds

TOTAL: Final[Seconds] = 1.5
PASSES: Final = (5, 400)
SETS: Final = 16
ROOM: Final[Bytes] = 2**27


@dataclass(frozen=True, slots=True)
class OperatorCase:
    """An operator: its code, and sets of made-up inputs (`size` bytes in all) that are used in rotation."""

    name: str
    code: Callable[[Environment, Leaves], None]
    leaves: Leaves
    sets: tuple[Environment, ...]
    size: Bytes


def make_case(name: str, graph: Graph, index: int, bench: Bench = HOST) -> OperatorCase:
    """As many sets of activations as fill the bench's ring, at most 16; all sets have the same parameters, as in a
    step. An operator that does not take made-up inputs gets tamer ones, and one that takes none is timed as a copy of
    what it reads and makes."""
    case = _case(name, graph, index, bench)
    if bench.device == CPU and not _runs(case):
        case = _case(name, graph, index, bench, tame=True)
        if not _runs(case):
            return replace(case, code=_copying(case.size // len(case.sets)))
    return case


def _copying(size: Bytes) -> Callable[[Environment, Leaves], None]:
    """Reads half of so many bytes and writes them elsewhere."""
    from_, to = torch.zeros(2, max(size // 8, 1))

    def code(environment: Environment, leaves: Leaves) -> None:
        to.copy_(from_)

    return code


def _runs(case: OperatorCase) -> bool:
    try:
        for inputs in case.sets[:2]:
            case.code(dict(inputs), case.leaves)
    except (RuntimeError, ValueError, IndexError):
        return False
    return True


def _case(name: str, graph: Graph, index: int, bench: Bench, *, tame: bool = False) -> OperatorCase:
    operator, inputs = graph.operators[index], dict(graph.inputs)
    refs, given = tuple(dict.fromkeys(operator.reads())), partial(made, device=bench.device, tame=tame)
    leaves = {r.name: given(r, operator, graph) for r in refs if r.name in graph.leaves}
    moved = [r for r in refs if r.name not in graph.leaves or r.name in inputs]
    each = sum(graph.tensor(r).size(graph.batch) for r in moved)
    each += sum(t.size(graph.batch) for t in operator.outputs if t is not None)
    count = max(1, min(SETS, bench.ring // max(each, 1)))
    fixed: Environment = {DRAWS: None} | {n: v for n, v in leaves.items() if n == TANGENT}
    sets = tuple(fixed | {key(r): given(r, operator, graph) for r in moved} for _ in range(count))
    last = dict.fromkeys(last_reads(graph), len(graph.operators) + 1)
    return OperatorCase(name, compile_segment(graph, index, index + 1, bench.device, last), leaves, sets, each * count)


def seconds_in_turn(
    examples: Sequence[tuple[str, Graph, int]], tell: Callable[[int], Any], bench: Bench = HOST, total: Seconds = TOTAL
) -> tuple[dict[str, Seconds], float]:
    """Core-seconds of each (name, graph, index), or seconds by the bench's clock: the mean over passes, which take
    about `total` seconds together, without the slowest and fastest tenths. And the unevenness of whole passes: standard
    deviation over mean, of the same ones."""
    found: dict[str, Seconds] = {}
    passes: list[float] = []
    for cases in _batches(examples, bench):
        fresh, whole = _run(cases, bench, total)
        found |= fresh
        passes += whole
        tell(len(found))
    return found, pstdev(passes) if passes else 0.0


def _batches(examples: Sequence[tuple[str, Graph, int]], bench: Bench) -> Iterator[list[OperatorCase]]:
    """Lists of cases that fit into memory together."""
    held: list[OperatorCase] = []
    for example in examples:
        held.append(make_case(*example, bench))
        if sum(case.size for case in held) > bench.held:
            yield held
            held = []
    if held:
        yield held


def _run(cases: Sequence[OperatorCase], bench: Bench, total: Seconds) -> tuple[dict[str, Seconds], list[float]]:
    """Core-seconds of each case, and how many times as long as the mean each pass took that counts."""
    if bench.device == CPU:
        fault_in(ROOM + 2 * max(case.size // len(case.sets) for case in cases))
    took = _pass_seconds(cases, bench)
    passes = min(max(round(total / max(took, 1e-6)), PASSES[0]), PASSES[1])
    turns = [_pass(cases, n + 1, bench) for n in range(passes)]
    idle = 0.0 if bench.each else _clock_cost()
    spent = {case.name: max(fmean(_middle([turn[i] for turn in turns])) - idle, 1e-8) for i, case in enumerate(cases)}
    whole = _middle([sum(turn) for turn in turns])
    return spent, [each / fmean(whole) for each in whole]


def _pass_seconds(cases: Sequence[OperatorCase], bench: Bench) -> Seconds:
    """What a pass takes of the clock by which passes are counted: a processor's, or the wall's beside a card, which
    works on long after a call is launched."""
    first = sum(_pass(cases, 0, bench))
    if bench.device == CPU:
        return first
    begun = time.perf_counter()
    _pass(cases, 1, bench)
    return time.perf_counter() - begun


def _pass(cases: Sequence[OperatorCase], number: int, bench: Bench) -> list[Seconds]:
    if bench.each:
        return bench.each([partial(_turn, case, number) for case in cases])
    spent = []
    for case in cases:
        environment = dict(case.sets[number % len(case.sets)])
        before = time.thread_time()
        case.code(environment, case.leaves)
        spent.append(time.thread_time() - before)
    return spent


def _turn(case: OperatorCase, number: int) -> None:
    case.code(dict(case.sets[number % len(case.sets)]), case.leaves)


def _middle(values: Sequence[Seconds]) -> list[Seconds]:
    """All but the slowest and fastest tenths."""
    cut = len(values) // 10
    return sorted(values)[cut : len(values) - cut]


def _clock_cost() -> Seconds:
    """Seconds that reading the clock twice takes."""
    stamps = [time.thread_time() for _ in range(101)]
    return (stamps[-1] - stamps[0]) / 100
