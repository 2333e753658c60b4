"""Operators timed one by one in stretches of a step (`probes/stretches.py`), stretch after stretch, pass after pass.

A loop over one operator is too optimistic: in a step a hundred other operators ran since its last call, and it writes
to memory that was freed a while ago. Operators in rotation, each with inputs that nobody wrote a moment ago, are too
pessimistic: small steps take half of it. So they run in a step's order, and before a stretch comes other work, such as
a step has between its backward pass and the next forward pass.

    other work | addmm relu addmm relu ... | other work | mm threshold mm ... |

The first operator of a target (`aten.addmm`) in a stretch finds its code in no cache. What it takes longer than the
others of its kind is told by itself: a step has it once, however many there are of it.

Memory is mapped before the first pass, as a step's memory was mapped by earlier steps, and results are freed as in a
step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean, median, pstdev
from typing import Any, Final

import torch

from partita.cost.prices import FIRST
from partita.probes.bench import HOST, Bench
from partita.probes.stretches import Made, Stretch, make
from partita.probes.timing import elsewhere
from partita.runs.heap import fault_in
from partita.runtime.device import CPU
from partita.units import Bytes, Seconds

TOTAL: Final[Seconds] = 1.5
PASSES: Final = (5, 400)
ROOM: Final[Bytes] = 2**27
LEAST: Final[Seconds] = 1e-8
MOST: Final = 0.75  # of what an operator took, if it only was the first of its target, is the cost of being that


@dataclass(slots=True)
class Timed:
    """Core-seconds, or seconds by the bench's clock: of each operator in its `places`; `unevenness` of whole passes:
    standard deviation over mean."""

    places: dict[str, Seconds] = field(default_factory=dict)
    usual: dict[str, list[Seconds]] = field(default_factory=dict)
    first: dict[str, list[Seconds]] = field(default_factory=dict)
    target: dict[str, str] = field(default_factory=dict)
    unevenness: float = 0.0

    def note(self, made: Made, spent: Sequence[Seconds]) -> None:
        """Enter what each operator of a stretch took."""
        stretch, met = made.stretch, set[str]()
        operators = stretch.graph.operators[stretch.start : stretch.stop]
        for i, (kind, operator, seconds) in enumerate(zip(stretch.kinds, operators, spent, strict=True)):
            alone, new = len(operators) == 1, operator.target not in met
            met.add(operator.target)
            if i >= stretch.lead:
                self.target[kind], self.places[made.places[i]] = operator.target, seconds
                (self.first if new and not alone else self.usual).setdefault(kind, []).append(seconds)

    @property
    def operators(self) -> dict[str, Seconds]:
        """Of each kind, by signature; and by target what the first one in a step takes more."""
        found = {kind: fmean(values) for kind, values in self.usual.items()}
        beyond = dict[str, list[Seconds]]()
        for kind in (kind for kind in self.first if kind in found):
            beyond.setdefault(self.target[kind], []).append(fmean(self.first[kind]) - found[kind])
        more = {target: max(fmean(values), 0.0) for target, values in beyond.items()}
        common = median(more.values()) if more else 0.0
        for kind in (kind for kind in self.first if kind not in found):
            took, target = fmean(self.first[kind]), self.target[kind]
            part = min(more.get(target, common), MOST * took)
            more.setdefault(target, part)
            found[kind] = max(took - part, LEAST)
        return found | {target + FIRST: seconds for target, seconds in more.items()}


def seconds_in_turn(
    stretches: Sequence[Stretch], tell: Callable[[int], Any], bench: Bench = HOST, total: Seconds = TOTAL
) -> Timed:
    """What the operators of stretches take: the mean over passes, which take about `total` seconds together, without
    the slowest and fastest tenths."""
    found, passes, done, size = Timed(), list[float](), 0, sum(map(len, stretches))
    with without_denormals():
        for held in _batches(stretches, bench):
            spent, whole = mean_seconds(held, bench, total * sum(len(made.codes) for made in held) / size)
            for made, seconds in zip(held, spent, strict=True):
                found.note(made, seconds)
                done += len(seconds)
            passes += whole
            tell(done)
    found.unevenness = pstdev(passes) if passes else 0.0
    return found


@contextmanager
def without_denormals() -> Iterator[None]:
    """A context in which a processor takes numbers that are nearly 0 for 0: made-up values leave the range of a
    model's, and operators on such numbers take many times as long."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def _batches(stretches: Sequence[Stretch], bench: Bench) -> Iterator[list[Made]]:
    """Lists of stretches that fit into memory together."""
    held: list[Made] = []
    for stretch in stretches:
        held += make(stretch, bench)
        if sum(made.size for made in held) > bench.held:
            yield held
            held = []
    if held:
        yield held


def mean_seconds(held: Sequence[Made], bench: Bench, total: Seconds) -> tuple[list[list[Seconds]], list[float]]:
    """Of each stretch the core-seconds of its operators, and how many times as long as the mean each pass took that
    counts."""
    if bench.device == CPU:
        fault_in(ROOM + 2 * max(made.size // len(made.sets) for made in held))
    took = _pass_seconds(held, bench)
    passes = min(max(round(total / max(took, 1e-6)), PASSES[0]), PASSES[1])
    turns = [timed_pass(held, n + 1, bench) for n in range(passes)]
    idle = 0.0 if bench.each else _clock_cost()
    whole = _middle([sum(map(sum, turn)) for turn in turns])
    columns = [zip(*(turn[i] for turn in turns), strict=True) for i in range(len(held))]
    spent = [[max(fmean(_middle(column)) - idle, LEAST) for column in of_one] for of_one in columns]
    return spent, [each / fmean(whole) for each in whole]


def _pass_seconds(held: Sequence[Made], bench: Bench) -> Seconds:
    """What a pass takes of the clock by which passes are counted: a processor's, or the wall's beside a card, which
    works on long after a call is launched."""
    clock = time.thread_time if bench.device == CPU else time.perf_counter
    timed_pass(held, 0, bench)
    begun = clock()
    timed_pass(held, 1, bench)
    return clock() - begun


def timed_pass(held: Sequence[Made], number: int, bench: Bench) -> list[list[Seconds]]:
    """Each operator's seconds in a pass over all stretches."""
    if bench.each:
        found = iter(bench.each([partial(_call, made, number) for made in held]))
        return [[next(found)] for _ in held]
    spent: list[list[Seconds]] = []
    for made in held:
        environment, taken = dict(made.sets[number % len(made.sets)]), list[Seconds]()
        elsewhere(bench)
        if bench.rest:
            time.sleep(bench.rest)
        for code in made.codes:
            before = time.thread_time()
            code(environment, made.leaves)
            taken.append(time.thread_time() - before)
        spent.append(taken)
    return spent


def _call(made: Made, number: int) -> None:
    made.codes[0](dict(made.sets[number % len(made.sets)]), made.leaves)


def _middle(values: Sequence[Seconds]) -> list[Seconds]:
    """All but the slowest and fastest tenths."""
    cut = len(values) // 10
    return sorted(values)[cut : len(values) - cut]


def _clock_cost() -> Seconds:
    """Seconds that reading the clock twice takes."""
    stamps = [time.thread_time() for _ in range(101)]
    return (stamps[-1] - stamps[0]) / 100
