"""With how many others each rank has messages at once, and in which order it posts them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partita.arrays import Ints
from partita.program.instruction import Instruction, Send
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


def posted(source: Ints, target: Ints, size: int) -> tuple[Ints, Ints]:
    """Of every message the place of its receiver among those to which its sender speaks, in the order of its Program,
    and how many these are."""
    pairs, first, inverse = np.unique(source * size + target, return_index=True, return_inverse=True)
    spoken = np.bincount(pairs // size, minlength=size)
    place = np.empty(len(pairs), np.int64)
    place[np.lexsort((first, pairs // size))] = np.arange(len(pairs)) - np.repeat(np.cumsum(spoken) - spoken, spoken)
    return place[inverse], spoken[source]
