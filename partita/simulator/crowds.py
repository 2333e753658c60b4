"""With how many others each rank has messages at once, and in which order it posts them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from partita.arrays import Ints
from partita.program.instruction import After, Instruction, Send, Snapshot
from partita.program.program import Program, Role


def peers_at_once(
    sends: Sequence[tuple[Role, Instruction]], source: Ints, target: Ints, program: Program
) -> Ints:  # fmt: skip
    """Of each rank the number of others to which it speaks, or of those from which it hears if they are fewer, at once:
    to which one and the same bucket goes, but no more than it has messages of it in a step, about. The ends of the
    messages are those of `sends` in order.

        d_psgd   a step: bucket to 1 and 3                        two at once
        gossip   a step: bucket to 1; the next: bucket to 3       one at once
        gpipe    a step: values to 2, their gradients to 0        one at once
    """
    names: dict[str, int] = {}
    buckets = [names.setdefault(i.act.bucket, len(names)) for _, i in sends if isinstance(i.act, Send)]
    bucket = np.repeat(np.array(buckets, np.int64), [len(role.ranks) for role, _ in sends])
    found, most = [], program.size * len(names)
    for one, other in ((source, target), (target, source)):
        own = one * len(names) + bucket
        peers = np.bincount(np.unique(own * program.size + other) // program.size, minlength=most)
        messages = np.rint(np.bincount(own, minlength=most) / max(program.steps, 1)).astype(np.int64)
        together = np.minimum(peers, np.maximum(messages, 1))
        found.append(together.reshape(program.size, -1).max(1, initial=0))
    fewest: Ints = np.minimum(*found)
    return fewest


def releases(sends: Sequence[tuple[Role, Instruction]]) -> Ints:
    """Of each message, in the order of the ends of `sends`, a number for what it waits for: those of one rank that have
    it alike are posted at once. What was copied for a message counts as that for which the copy waits.

        ps_sync    U0 -> D0.0, D0.1, D0.2              at once
        ps_async   U0.0 -> D0.0, U0.1 -> D0.1, ...     each when its worker's gradient has come
    """
    names: dict[tuple[str, frozenset[After]], int] = {}
    found = [names.setdefault((role.name, frozenset(_waited(role, i))), len(names)) for role, i in sends]
    return np.repeat(np.array(found, np.int64), [len(role.ranks) for role, _ in sends])


def _waited(role: Role, one: Instruction) -> Iterator[After]:
    for after in one.after:
        before = role.on_name[after.name]
        if isinstance(before.act, Snapshot):
            yield from (cause for cause in before.after if cause.rounds == 0)
        else:
            yield after


def posted(source: Ints, target: Ints, release: Ints, size: int) -> tuple[Ints, Ints]:
    """Of every message the place of its receiver among those to which its sender speaks at once, in the order of its
    Program, and how many these are. Messages with one number in `release` are posted at once."""
    together = release * size + source
    pairs, first, inverse = np.unique(together * size + target, return_index=True, return_inverse=True)
    _, begins, spoken = np.unique(pairs // size, return_index=True, return_counts=True)
    place = np.empty(len(pairs), np.int64)
    place[np.lexsort((first, pairs // size))] = np.arange(len(pairs)) - np.repeat(begins, spoken)
    return place[inverse], np.repeat(spoken, spoken)[inverse]
