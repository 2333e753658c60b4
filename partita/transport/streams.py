"""A sum of sparse vectors, carried out by one rank hop by hop, in messages of any length.

vector    0 0 a 0 b 0 0 c  ->  streams, one for each part  --hops: merged, or replacing others-->  streams  ->  vector
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from partita.kernels.compiled import array_of
from partita.transport.hops import Code, by_schedule
from partita.transport.transport import Steps, Transport
from partita.transport.varying import Incoming, Outgoing, exchanged
from partita.wire.schedule import Hop, Schedule, even_edges, halved, own_steps
from partita.wire.streams import Maps, body_size, packed, stream_of, unpacked

Place = tuple[str, int, int, int]  # a hop: its collective, step, source and target
KeptMaps = dict[Place, Maps]


def by_streams(
    transport: Transport, schedule: Schedule, flat: torch.Tensor, group: Sequence[int], key: str, round: int,
    kept: KeptMaps, code: Code | None = None,
) -> Steps:  # fmt: skip
    """Sum `flat` in place among `group` by a schedule whose parts are streams; yields what it waits for. `kept` has
    the indices that both ends of hops remember. Dense results may be encoded by `code`. All ranks end with the same
    bits."""
    if schedule.sparse and schedule.sparse.whole:
        sums, results = halved(schedule)
        yield from _streaming(transport, sums, flat, group, key, round, kept)
        yield from by_schedule(transport, results, flat, group, f"{key}.", round, code)
    else:
        yield from _streaming(transport, schedule, flat, group, key, round, kept)


def _streaming(
    transport: Transport, schedule: Schedule, flat: torch.Tensor, group: Sequence[int], key: str, round: int,
    kept: KeptMaps,
) -> Steps:  # fmt: skip
    me, host = group.index(transport.rank), flat.cpu()
    vector = array_of(host)
    edges = even_edges(len(vector), schedule.parts)
    lengths = [stop - start for start, stop in pairwise(edges)]
    held = [stream_of(vector[start:stop]) for start, stop in pairwise(edges)]
    maps = partial(_maps, kept, key, group) if schedule.sparse and schedule.sparse.maps else _no_maps
    for number, *both in own_steps(schedule, me):
        name = f"{key}/{number}"
        coming, going = ([hop for hop in hops if edges[hop.stop] > edges[hop.start]] for hops in both)
        sent = []
        for hop in going:
            head, body = packed(held[hop.start : hop.stop], maps(number, hop))
            sent.append(Outgoing(torch.from_numpy(head), torch.from_numpy(body), group[hop.target], name))
        landing = [IncomingStream(hop, np.empty(hop.stop - hop.start, np.int64), vector.itemsize) for hop in coming]
        asked = [Incoming(torch.from_numpy(one.head), one.room, group[one.hop.source], name) for one in landing]
        yield from exchanged(transport, sent, asked, round)
        for one in landing:
            parts = range(one.hop.start, one.hop.stop)
            known = maps(number, one.hop)
            came = unpacked(one.head, one.body, lengths[one.hop.start : one.hop.stop], vector.dtype, known)
            for part, stream in zip(parts, came, strict=True):
                held[part] = held[part] + stream if one.hop.add else stream
    for start, stop, stream in zip(edges, edges[1:], held, strict=False):
        vector[start:stop] = stream.all()
    if host is not flat:
        flat.copy_(host)


def _maps(kept: KeptMaps, key: str, group: Sequence[int], number: int, hop: Hop) -> Maps:
    """The indices that both ends of a hop remember."""
    return kept.setdefault((key, number, group[hop.source], group[hop.target]), {})


def _no_maps(number: int, hop: Hop) -> None:
    """Nothing is remembered."""


@dataclass
class IncomingStream:
    """A message on its way to this rank, with elements of `item` bytes."""

    hop: Hop
    head: Any
    item: int
    body: Any = None

    def room(self) -> torch.Tensor:
        """A buffer for its body, of the length that its head says."""
        self.body = np.empty(body_size(self.head, self.item), np.uint8)
        return torch.from_numpy(self.body)
