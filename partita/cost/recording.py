"""Instances of a role's instructions, written into the log of its allocations: microbatches that go through the same
are written once.

order   F#0  F#1  B#0  F#2  B#1  U  B#2          the rank's own    U
                                                 environment 0     F B       written
                                                 1, 2              F B       the entries of 0, at other instances
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from partita.arrays import Ints, Reals
from partita.cost.allocations import AllocationRecorder, Instance, part_of
from partita.cost.memory_curve import ByteSeries
from partita.program.alike import doing_of
from partita.program.instruction import Act


@dataclass(frozen=True, eq=False)
class AllocationLog:
    """What happens in a rank's memory, in the order in which its instances start: entry k is of instance `number[k]`,
    when that has gone through `share[k]` of its time, and allocates `changes[k]` bytes, a number for each of PURPOSES,
    or frees them where negative. Of each environment, `drops` has the first entry that drops it and the one behind the
    last, shape [environments, 2], and `users` the instances that use it."""

    number: Ints
    share: Reals
    changes: ByteSeries
    drops: Ints
    users: tuple[list[int], ...]


def recorded(recorder: AllocationRecorder, acts: Sequence[Act], order: Ints) -> AllocationLog:
    """The log of instances of `acts`, round by round, by a recorder that has written nothing yet; `order` has their
    numbers as they start."""
    size, parts = len(acts), [part_of(act) for act in acts]
    environments: dict[tuple[int, str], list[int]] = {}
    for n in order.tolist():
        recorder.record_shared(Instance(n, n // size), acts[n % size])
        if parts[n % size]:
            environments.setdefault((n // size, parts[n % size]), []).append(n)
    entries, numbers, drops, users = [np.arange(len(recorder.number))], [np.array(recorder.number, np.int64)], [], []
    kinds, written, count = dict[Hashable, int](), dict[tuple[int, ...], tuple[Ints, Ints, int]](), len(recorder.number)
    doing = [kinds.setdefault(doing_of(act), len(kinds)) if part else -1 for act, part in zip(acts, parts, strict=True)]
    for ours in environments.values():
        alike = tuple(doing[n % size] for n in ours)
        if alike not in written:
            written[alike] = _environment(recorder, acts, ours)
        entry, place, dropped = written[alike]
        entries.append(entry)
        numbers.append(np.array(ours, np.int64)[place])
        if dropped < len(entry):
            drops.append((count + dropped, count + len(entry) - 1))
            users.append(ours)
        count += len(entry)
    entry, number, turn = np.concatenate(entries), np.concatenate(numbers), np.empty(len(order), np.int64)
    turn[order] = np.arange(len(order))
    sequence = np.argsort(turn[number], kind="stable")
    ends: Ints = np.argsort(sequence)[np.array(drops, np.int64).reshape(-1, 2)] + np.array([0, 1])
    entry = entry[sequence]
    return AllocationLog(number[sequence], np.array(recorder.share)[entry], recorder.changes[entry], ends, tuple(users))


def _environment(recorder: AllocationRecorder, acts: Sequence[Act], ours: list[int]) -> tuple[Ints, Ints, int]:
    """Write the instances of one environment. Returns the new entries, which of the instances each is of, and how many
    come before those that drop it."""
    first, place = len(recorder.number), {n: k for k, n in enumerate(ours)}
    dropped = recorder.record_environment([(Instance(n, n // len(acts)), acts[n % len(acts)]) for n in ours])
    entries = np.arange(first, len(recorder.number))
    return entries, np.array([place[n] for n in recorder.number[first:]], np.int64), dropped - first
