"""Times of calls as they are in a step: after other work, with the caches, code and heap that this leaves behind.

A loop over one call is too optimistic: an optimizer's step over eight small tensors takes 0.05 ms in a loop, and 0.22
ms if a forward and a backward pass ran since the last one.

    disturb  run  disturb  run  disturb  run        only the runs are timed, in core-seconds of this thread
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from statistics import median
from typing import Any, Final, TypeAlias

import torch

from partita.probes.bench import HOST, Bench
from partita.runtime.device import CPU
from partita.units import Seconds

Run: TypeAlias = tuple[Callable[[], Any], Bench]  # a call, and how it is timed
LEAST: Final[Seconds] = 0.006
ALONE: Final[Seconds] = 0.1  # of work by itself, before and after what may slow it down
TURNS: Final = (9, 17)
FEWEST: Final = 5  # turns, where each takes long
COLD_SECONDS: Final[Seconds] = 0.1  # of runs, after which no more are made than must be
AGEING: Final[Seconds] = 1.0  # the same of turns of all kin, rests and all
AHEAD: Final[Seconds] = 1e-3  # of computing before each message, collective and instruction


def thread_seconds(run: Callable[[], Any]) -> Seconds:
    """Core-seconds of one `run` in a loop: the median of five batches of runs that last LEAST seconds in all."""
    run()
    before = time.thread_time()
    run()
    once = max(time.thread_time() - before, 1e-7)
    runs = max(1, round(LEAST / 5 / once))
    batches = []
    for _ in range(5 if once < LEAST else 3):
        before = time.thread_time()
        for _ in range(runs):
            run()
        batches.append((time.thread_time() - before) / runs)
    return median(batches)


def cold_seconds(run: Callable[[], Any], bench: Bench = HOST, *, again: bool = False) -> Seconds:
    """Core-seconds of one `run` after other work, or seconds by the bench's clock: the median of 9 to 17 runs, fewer
    if they take long. `again`: of a second one right behind it, on a processor."""
    run()
    if bench.each:
        return median(bench.each([partial(disturb, bench), run] * TURNS[0])[1::2])
    turns: list[Seconds] = []
    while len(turns) < TURNS[0] or (len(turns) < TURNS[1] and sum(turns) < COLD_SECONDS):
        turns.append(seconds_behind(run, bench, again=again))
    return median(turns)


def seconds_behind(run: Callable[[], Any], bench: Bench, *, again: bool = False) -> Seconds:
    """Core-seconds of one run behind the bench's other work, or of a second one right behind it (`again`)."""
    disturb(bench)
    if again:
        run()
    before = time.thread_time()
    run()
    return time.thread_time() - before


def aged_seconds(runs: Sequence[Run], kin: Sequence[str], age: Seconds) -> list[Seconds]:
    """`cold_seconds` of each run, so many seconds at least after it was made last, or another one of its kin, which has
    the same code: others take turns with it, as they do in a step, and where they take less there is a rest. On a busy
    machine neighbours of this one have taken its place in the caches by then, the longer ago the more: an update of a
    million weights that takes 2.3 ms in a loop took 3 behind 10 ms in which nobody touched them, 7 behind 50, and 14
    behind 200, with a rest in between or other work.

        a | b | c | rest | a | b | c | rest |          for `age` seconds nobody touches what `a` touches
    """
    if any(bench.each for _, bench in runs):
        return [cold_seconds(run, bench) for run, bench in runs]
    found = dict[int, Seconds]()
    for row in (rows := _rows(kin)):
        turn, until = list[int](), time.perf_counter() + age
        for at in row:
            run, bench = runs[at]
            disturb(bench)
            run()
            turn.append(at)
            if time.perf_counter() >= until or at == row[-1]:
                found |= zip(turn, _in_turns([runs[each] for each in turn], age, AGEING / len(rows)), strict=True)
                turn, until = [], time.perf_counter() + age
    return [found[at] for at in range(len(runs))]


def _rows(kin: Sequence[str]) -> list[list[int]]:
    """Places of a list in as few rows as have no two of the same kin."""
    rows, met = list[list[int]](), Counter[str]()
    for at, name in enumerate(kin):
        if met[name] == len(rows):
            rows.append([])
        rows[met[name]].append(at)
        met[name] += 1
    return rows


def _in_turns(runs: Sequence[Run], age: Seconds, least: Seconds) -> list[Seconds]:
    """The median core-seconds of each run over 5 to 17 turns, fewer if they take longer than `least`, which begin
    `age` seconds after one another at least."""
    spent: list[list[Seconds]] = [[] for _ in runs]
    begun, turn = time.perf_counter(), 0
    while turn < FEWEST or (turn < TURNS[1] and time.perf_counter() < begun + least):
        turn, until = turn + 1, time.perf_counter() + age
        for (run, bench), own in zip(runs, spent, strict=True):
            own.append(seconds_behind(run, bench))
        time.sleep(max(until - time.perf_counter(), 0.0))
    return list(map(median, spent))


def disturb(bench: Bench = HOST) -> None:
    """What the bench has `ahead` of a call, or else a small version of the work between two updates of a step: a pass
    over what it has `between` two calls, and a dozen operators."""
    if bench.ahead:
        bench.ahead()
        time.sleep(bench.rest)
        return
    surroundings(bench.device)[0][: bench.between // 4].add_(1.0)
    segment(bench.device)


def segment(device: str = CPU) -> None:
    """A dozen operators, such as a segment of a small step has."""
    _, image, kernel, matrix = surroundings(device)
    torch.max_pool2d(torch.relu(torch.conv2d(image, kernel)), 2)
    torch.cat([torch.softmax(torch.mm(matrix, matrix), 0), matrix.t().contiguous()]).sum()


def elsewhere(bench: Bench = HOST) -> None:
    """What a step does between its last operator and its first, in code that operators do not share: a pass over what
    the bench has `between`, and a dozen rare operators."""
    surroundings(bench.device)[0][: bench.between // 4].add_(1.0)
    matrix = surroundings(bench.device)[3]
    values = matrix.view(-1)[:4096]
    ordered, _ = torch.sort(values)
    torch.searchsorted(ordered, values[:256])
    torch.unique(values[:256])
    torch.histc(values, 16)
    for rare in (torch.tril, torch.diff, torch.nonzero, torch.fliplr, torch.trace, torch.sinc, torch.signbit):
        rare(matrix)


def forget() -> None:
    """Free what `disturb` keeps; on a card it is in the way of a run."""
    surroundings.cache_clear()


@cache
def surroundings(device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """What `disturb`, `segment` and `elsewhere` work on, the same until `forget`: numbers to pass over (16 MiB, on a
    card 128), images [8, 16, 32, 32], kernels [32, 16, 3, 3], a matrix [128, 128]."""
    memory = torch.zeros(2**22 if device == CPU else 2**25, device=device)
    image, kernel = torch.randn(8, 16, 32, 32, device=device), torch.randn(32, 16, 3, 3, device=device)
    return memory, image, kernel, torch.randn(128, 128, device=device)


def slowed_by(
    begin: Callable[[], Callable[[], bool]], work: Callable[[], Any], together: Callable[[], Any] = lambda: None,
    clock: Callable[[], Seconds] = time.thread_time,
) -> Seconds:  # fmt: skip
    """Core-seconds by which `work`, again and again, takes longer while what `begin` begins goes on, which the function
    that it returns tells; beside the same before and after, when all ranks have come `together`. With the process's
    `clock` those of what goes on are among them."""

    def spent_while(going_on: Callable[[], bool]) -> tuple[Seconds, int]:
        begun, turns = clock(), 0
        while going_on():
            work()
            turns += 1
        return clock() - begun, turns

    def alone() -> Seconds:
        together()
        until = time.thread_time() + ALONE
        spent, turns = spent_while(lambda: time.thread_time() < until)
        together()
        return spent / turns

    before = alone()
    spent, turns = spent_while(begin())
    return max(spent - turns * (before + alone()) / 2, 0.0)


def disturbance_of(act: Callable[[], Any], work: Callable[[], Any], least: Seconds = 0.03) -> float:
    """Core-seconds by which `work`, again and again, takes longer for each core-second in which another thread does an
    `act`, which goes on for `least` of them. Raises what that raises."""
    going = list[Future[Seconds]]()

    def carried_out() -> Seconds:
        begun, spent = time.thread_time(), 0.0
        while spent < least:
            act()
            spent = time.thread_time() - begun
        return spent

    with ThreadPoolExecutor(1) as pool:

        def begin() -> Callable[[], bool]:
            going.append(pool.submit(carried_out))
            return lambda: not going[0].done()

        longer = slowed_by(begin, work)
        return longer / max(going[0].result(), 1e-6)


def few_operators() -> None:
    """As many calls of short operators as a small step has of some layers."""
    matrix = surroundings(CPU)[3][:16, :16]
    for _ in range(12):
        torch.relu(torch.add(matrix, 1.0))


def computed(least: Seconds) -> Seconds:
    """Computes for at least so many core-seconds of this thread what a segment of a small step does; returns how many
    they were."""
    begun = time.thread_time()
    while (spent := time.thread_time() - begun) < least:
        segment()
    return spent
