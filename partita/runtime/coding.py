"""Gradients encoded, brought together and decoded on one rank.

coding b0.topk on rank 1   | rank 0's message | own message | rank 2's message |     a row for each, as they are summed
coding b0.fp16             | one row of fp16 numbers, summed as they are |
coding b0.q8 of owners     | own message for rank 0 | for rank 1 | for rank 2 |   and a row for each: of rank 1's part
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Final

import torch

from partita.graph.tensor import ITEMSIZE
from partita.kernels.codecs import kernel_of
from partita.kernels.site import Site
from partita.program.instruction import Collective, Decode, Encode, Receive, Send
from partita.program.layout import Coding
from partita.program.space import Kind, Space
from partita.runtime.finite import check_decoded, check_outgoing
from partita.runtime.rank import Rank
from partita.transport.hops import by_schedule
from partita.transport.transport import Pending, Steps
from partita.transport.varying import Incoming, Outgoing, exchanged
from partita.wire.algorithms import schedule_of
from partita.wire.codec import coded_size, message_dtype
from partita.wire.rows import LENGTH, padded, part_lengths, row_length
from partita.wire.schedule import Schedule, own_steps

EVERYBODY: Final = -1


def coding_key(seed: int, step: int, rank: int, place: str) -> int:
    """What random numbers of an encoding are drawn by: the same in every plan of the same name, run or replayed."""
    return zlib.crc32(f"{seed}/{step}/{rank}/{place}".encode())


def drawn_for(what: str, name: str) -> str:
    """What random numbers of an encoding are drawn for besides its step and rank: a coding, or a bucket in hops, and
    where a round encodes that several times, as in `E0#0.1`, which of them."""
    return what + "".join(name.partition("#")[1:])


def encode(rank: Rank, act: Encode, name: str, round: int) -> None:
    """Encode a rank's bucket, with what error feedback has kept of it, into the messages of its coding; what the
    messages do not say is kept for the next round. A coding of parts makes a message for each owner."""
    coding = rank.program.coding[act.coding]
    check_outgoing(rank, act.bucket, act.space, round)
    values = fresh = rank.state.flat(act.space, act.bucket, rank.slot(round))
    feedback = coding.codec.error_feedback
    if feedback:
        held = rank.state.kept[act.held, act.bucket]
        values = held if coding.before else held.add_(values)
    place, own = drawn_for(coding.name, name), coding_key(rank.feed.seed, rank.step(round, 0), rank.rank, coding.name)
    site = site_of(rank, coding, round, fresh)
    if coding.edges:
        for part, (a, b) in enumerate(pairwise(coding.edges)):
            key = coding_key(rank.feed.seed, rank.step(round, 0), rank.rank, f"{place}/{part}")
            if b > a:
                _fill(coding, own_part(rank, coding, part, round), values[a:b], key, replace(site, fresh=fresh[a:b]))
        return
    message = _fill(coding, row(rank, coding, rank.rank, round), values, own, site)
    for space in act.clears:
        kernel_of(coding.codec).clear(message, rank.state.flat(space, act.bucket, rank.slot(round)))


def _fill(coding: Coding, message: torch.Tensor, values: torch.Tensor, key: int, site: Site) -> torch.Tensor:
    """What stands for `values` in a message, now that they are encoded."""
    kernel, feedback = kernel_of(coding.codec), coding.codec.error_feedback
    if not coding.most:
        kernel.encode(values, message, key, feedback, site)
        return message
    used = kernel.encode(values, message[LENGTH:], key, feedback, site)
    message[:LENGTH].view(torch.int64)[0] = used
    return message[LENGTH : LENGTH + used]


def decode(rank: Rank, act: Decode, name: str, round: int) -> None:
    """Summed in the order of the sources, so that every rank gets the same bits."""
    coding = rank.program.coding[act.coding]
    if act.into is Space.INBOX:
        flat = rank.state.inbox_of(act.bucket, act.sources[0])
    else:
        flat = rank.state.flat(act.into, act.bucket, rank.slot(round))
    kernel, site = kernel_of(coding.codec), site_of(rank, coding, round)
    if coding.edges:
        own = rank.state.owned[act.bucket]
        flat = flat[own.start : own.stop]
    for number, source in enumerate(act.sources or (rank.rank,)) if flat.numel() else ():
        message = row(rank, coding, source, round)
        if coding.most:
            message = _body(message)
        kernel.decode(message, flat, add=number > 0, site=site)
    check_decoded(rank, coding.codec, act.bucket, flat, rank.step(round, 0))


def site_of(rank: Rank, coding: Coding, round: int, fresh: torch.Tensor | None = None) -> Site:
    """What a bucket's codec may look at besides its numbers."""
    return Site(
        tuple(tuple(view.shape) for view in rank.state.whole(coding.bucket)),
        tuple(row(rank, rank.program.coding[name], rank.rank, round) for name in coding.before),
        rank.state.kept.get((Space.BASIS, coding.bucket)),
        coding_key(rank.feed.seed, 0, EVERYBODY, coding.bucket),
        fresh,
    )


def collect(rank: Rank, act: Collective, group: tuple[int, ...], name: str, round: int) -> Pending | Steps:
    """Codings summed as they are, or one of each member brought to all."""
    coding = rank.program.coding[act.bucket]
    if act.kind is Kind.ALL_REDUCE:
        flat = row(rank, coding, rank.rank, round)
        if act.algorithm == "backend":
            return rank.transport.collective(act.kind, flat, group, rank.role.on_name[name].lane, name, round)
        return by_schedule(rank.transport, schedule_of(act.kind, act.algorithm, len(group)), flat, group, name, round)
    schedule = schedule_of(act.kind, act.algorithm, len(group))
    if act.kind is Kind.REDUCE_SCATTER:
        return _scattered(rank, coding, schedule, group, name, round)
    if coding.most:
        return _varying(rank, coding, schedule, group, name, round)
    block = block_of(rank, coding, round).view(-1)
    return by_schedule(rank.transport, schedule, block, group, name, round)


def _scattered(
    rank: Rank, coding: Coding, schedule: Schedule, group: tuple[int, ...], name: str, round: int
) -> Steps:  # fmt: skip
    """To each owner the messages of its part, of which one may be empty."""
    here = [edge[1] > edge[0] for edge in pairwise(coding.edges)]
    for number, coming, going in own_steps(schedule, group.index(rank.rank)):
        key = f"{name}/{number}"
        come = [(row(rank, coding, group[hop.source], round), group[hop.source]) for hop in coming if here[hop.start]]
        go = [(own_part(rank, coding, hop.start, round), group[hop.target]) for hop in going if here[hop.start]]
        if coding.most:
            sent = [_outgoing(message, to, key) for message, to in go]
            asked = [_incoming(message, source, key) for message, source in come]
            yield from exchanged(rank.transport, sent, asked, round)
            continue
        waits = [rank.transport.receive(message, source, key, round) for message, source in come]
        yield from [*waits, *(rank.transport.send(message, to, key, round) for message, to in go)]


def _varying(
    rank: Rank, coding: Coding, schedule: Schedule, group: tuple[int, ...], name: str, round: int
) -> Steps:  # fmt: skip
    """Messages of varying length by a schedule of one part a member."""
    for number, coming, going in own_steps(schedule, group.index(rank.rank)):
        key = f"{name}/{number}"
        sent = [_outgoing(row(rank, coding, group[hop.start], round), group[hop.target], key) for hop in going]
        asked = [_incoming(row(rank, coding, group[hop.start], round), group[hop.source], key) for hop in coming]
        yield from exchanged(rank.transport, sent, asked, round)


def _outgoing(message: torch.Tensor, to: int, key: str) -> Outgoing:
    return Outgoing(message[:LENGTH], _body(message), to, key)


def _incoming(message: torch.Tensor, source: int, key: str) -> Incoming:
    return Incoming(message[:LENGTH], partial(_body, message), source, key)


def _body(message: torch.Tensor) -> torch.Tensor:
    return message[LENGTH : LENGTH + length_of(message)]


def length_of(message: torch.Tensor) -> int:
    """How many bytes of a message of varying length stand for numbers."""
    return int(message[:LENGTH].view(torch.int64)[0])


def send_coding(rank: Rank, act: Send, to: int, round: int) -> Pending | Steps:
    """A rank's own coding to a peer."""
    coding = rank.program.coding[act.bucket]
    message = row(rank, coding, rank.rank, round)
    if coding.most:
        return exchanged(rank.transport, [_outgoing(message, to, act.key)], [], round)
    return rank.transport.send(message, to, act.key, round)


def receive_coding(rank: Rank, act: Receive, source: int, round: int) -> Pending | Steps:
    """The coding of a peer, in its row."""
    coding = rank.program.coding[act.bucket]
    message = row(rank, coding, source, round)
    if coding.most:
        return exchanged(rank.transport, [], [_incoming(message, source, act.key)], round)
    return rank.transport.receive(message, source, act.key, round)


def block_of(rank: Rank, coding: Coding, round: int) -> torch.Tensor:
    """The rows of a coding, made when first asked for: one for each rank whose is decoded by itself, else one."""
    rows = len(rank.role.decoded.get(coding.name, ())) or 1
    return _room(rank, coding, round, coding.name, (rows, row_length(coding)))


def _room(rank: Rank, coding: Coding, round: int, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Room for the codings of a round, made when first asked for; by whichever lane of those that ask at once is the
    first."""
    key = name, round % coding.slots
    if key not in rank.state.coded:
        made = torch.zeros(shape, dtype=getattr(torch, coding.dtype), device=rank.device)
        return rank.state.coded.setdefault(key, made)
    return rank.state.coded[key]


def own_part(rank: Rank, coding: Coding, part: int, round: int) -> torch.Tensor:
    """What a rank itself makes of a part of a bucket."""
    lengths = _lengths(rank, coding)
    starts = list(accumulate(map(padded, lengths), initial=0))
    return _room(rank, coding, round, coding.name, (starts[-1],))[starts[part] : starts[part] + lengths[part]]


def _lengths(rank: Rank, coding: Coding) -> tuple[int, ...]:
    return part_lengths(coding, ITEMSIZE[rank.program.bucket[coding.bucket].dtype])


def _part_from(rank: Rank, coding: Coding, source: int, round: int) -> torch.Tensor:
    """What `source` makes of the rank's own part."""
    sources = rank.role.decoded[coding.name]
    mine = sources.index(rank.rank)
    if source == rank.rank:
        return own_part(rank, coding, mine, round)
    length = _lengths(rank, coding)[mine]
    room_of_all = _room(rank, coding, round, f"{coding.name} of others", (len(sources), padded(length)))
    return room_of_all[sources.index(source)][:length]


def row(rank: Rank, coding: Coding, source: int, round: int) -> torch.Tensor:
    """The message of a round that came from a rank."""
    if coding.edges:
        return _part_from(rank, coding, source, round)
    sources = rank.role.decoded.get(coding.name, ())
    return block_of(rank, coding, round)[sources.index(source) if sources else 0]


class HopCode:
    """The codec of a collective's hops, for one instance of it."""

    def __init__(self, act: Collective, name: str, rank: Rank, round: int) -> None:
        assert act.codec is not None
        self.codec, self.kernel = act.codec, kernel_of(act.codec)
        self.item = rank.state.flat(act.space, act.bucket, 0).element_size()
        self.seed, self.step, self.rank = rank.feed.seed, rank.step(round, 0), rank.rank
        self.place, self.check = drawn_for(act.bucket, name), partial(check_decoded, rank, act.codec, act.bucket)

    def size(self, elements: int) -> int:
        """Bytes of the message that stands for so many numbers."""
        return coded_size(self.codec, elements, self.item)

    def encode(self, values: torch.Tensor, message: torch.Tensor, part: int) -> None:
        """Fill `message` with the code of `values`, which are part `part` of the bucket; the random numbers are the
        same in all steps of the schedule."""
        key = coding_key(self.seed, self.step, self.rank, f"{self.place}/{part}")
        self.kernel.encode(values, self._typed(message), key)

    def decode(self, message: torch.Tensor, values: torch.Tensor, *, add: bool) -> None:
        """What a message says, put into `values` or added."""
        self.kernel.decode(self._typed(message), values, add=add)
        self.check(values, self.step)

    def _typed(self, message: torch.Tensor) -> torch.Tensor:
        return message.view(getattr(torch, message_dtype(self.codec)))
