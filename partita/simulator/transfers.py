"""What ranks do together in one round: collectives and messages, each one activity of all who take part, as arrays.

Send on rank 0 ------+                     Collective on ranks 0, 1, 2 ---+
                     transfer                                             transfer
Receive on rank 1 ---+                     its processors and ports   ----+
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from partita.arrays import Flags, Ints, Reals
from partita.cost.costs import Costs
from partita.cost.prices import Prices
from partita.errors import ProgramError
from partita.program.alike import doing_of
from partita.program.flight import peers_of
from partita.program.instruction import Instruction, Receive, Send
from partita.program.program import Program, Role
from partita.simulator.collectives import collectives, flowing
from partita.simulator.crowds import peers_at_once, posted, releases
from partita.simulator.hops import Columns
from partita.simulator.ports import Ports
from partita.units import Bytes


@dataclass(frozen=True, eq=False)
class Transfers:
    """`latency` and `least` seconds of every transfer, in one round. What microbatches repeat among the same ranks is
    one transfer here, which comes `copies` times.

    Entry k of `who`, `rank`, `slot`: transfer who[k] is an instruction of rank[k], and its copies are those of
    `slots` from slot[k] on; the first entry of a transfer stands for it. Entry k of `at`, `resource`, `amount`,
    `times`, `again`: what transfer at[k] demands, as in Activities; a message that goes before others counts as so many
    users of its ports as its share is larger. Entry k of `source`, `target`, `size`: payload bytes that a rank sends to
    another, in all copies. Slots number the instructions role by role.
    """

    latency: Reals
    least: Reals
    copies: Ints
    who: Ints
    rank: Ints
    slot: Ints
    slots: Ints
    at: Ints
    resource: Ints
    amount: Reals
    times: Reals
    again: Flags
    source: Ints
    target: Ints
    size: Reals


def transfers_of(program: Program, costs: Costs, ports: Ports) -> Transfers:
    """The transfers of one round. Raises ProgramError for a message with one end."""
    slots, first = {}, 0
    for role in program.roles:
        slots[role.name] = {i.name: first + j for j, i in enumerate(role.instructions)}
        first += len(role.instructions)
    parts, count, listed, prices = [], 0, 0, Prices(costs, program)
    together = collectives(prices, ports, slots, speeds(costs, program), role_of(program))
    for part in (*together, flowing(_messages(prices, ports, slots))):
        parts.append(part | {"who": part["who"] + count, "at": part["at"] + count, "slot": part["slot"] + listed})
        count += len(part["latency"])
        listed += len(part["slots"])
    columns = {
        name: np.concatenate([part[name] for part in parts])
        for name in Transfers.__annotations__
        if name not in ("times", "again")
    }
    times = np.concatenate([part.get("times", np.ones(len(part["at"]))) for part in parts])
    columns |= _on_hosts(columns, ports)
    count = len(columns["amount"])
    columns["times"] = np.pad(times, (0, count - len(times)), constant_values=1.0)
    columns["again"] = np.zeros(count, np.bool_)
    return Transfers(**columns)


def unrolled(transfers: Transfers) -> Transfers:
    """Each copy a transfer of its own."""
    copies = transfers.copies
    number = np.cumsum(copies) - copies
    (taking, turn), (at, again) = _turns(copies[transfers.who]), _turns(copies[transfers.at])
    slots = transfers.slots[transfers.slot[taking] + turn]
    return replace(
        transfers, latency=np.repeat(transfers.latency, copies), least=np.repeat(transfers.least, copies),
        copies=np.ones(copies.sum(), np.int64), who=number[transfers.who[taking]] + turn, rank=transfers.rank[taking],
        slot=np.arange(len(slots)), slots=slots, at=number[transfers.at[at]] + again,
        **{name: getattr(transfers, name)[at] for name in ("resource", "amount", "times", "again")},
    )  # fmt: skip


def _turns(copies: Ints) -> tuple[Ints, Ints]:
    """Each entry as often as it is copied, and which of its copies that is."""
    entry = np.repeat(np.arange(len(copies)), copies)
    return entry, np.arange(len(entry)) - np.repeat(np.cumsum(copies) - copies, copies)


def _on_hosts(columns: Columns, ports: Ports) -> Columns:
    """The demands, and on cores that several devices share the sum of what each transfer asks of their processors."""
    if not ports.hosts:
        return {name: columns[name] for name in ("at", "resource", "amount")}
    at, resource = (columns[name].astype(np.int64) for name in ("at", "resource"))
    amount = columns["amount"].astype(np.float64)
    processors = np.flatnonzero(resource < ports.cluster.size)
    host = ports.host_of[resource[processors]]
    ours, host = processors[host >= 0], host[host >= 0]
    total = ports.resources.size
    pairs, entry = np.unique(at[ours] * total + host, return_inverse=True)
    summed = np.bincount(entry, amount[ours], len(pairs))
    return {
        "at": np.concatenate([at, pairs // total]), "resource": np.concatenate([resource, pairs % total]),
        "amount": np.concatenate([amount, summed]),
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Ends:
    """The `sends` and `receives` of messages of which others are copies: `copies` of each by key, whose slots, end by
    end, are `slots` from `start` of the end's own slot on."""

    sends: Sequence[tuple[Role, Instruction]]
    receives: Sequence[tuple[Role, Instruction]]
    copies: Mapping[str, int]
    start: Mapping[int, int]
    slots: Ints


def _told_once(program: Program, numbers: dict[str, dict[str, int]], *, apart: bool) -> _Ends:
    """The messages of a program; unless each is to stand `apart`, those once that differ in their microbatch alone.
    `numbers` are the slots of each role's instructions by name."""
    ends, does = dict[str, list[tuple[Role, Instruction]]](), dict[str, list[Hashable]]()
    for role, i in program.instructions():
        if isinstance(i.act, Send | Receive):
            ends.setdefault(i.act.key, []).append((role, i))
            does.setdefault(i.act.key, []).append((role.name, doing_of(i.act), peers_of(i.act)))
    alike: dict[Hashable, list[str]] = {}
    for key, done in does.items():
        alike.setdefault(key if apart else tuple(done), []).append(key)
    start, slots = dict[int, int](), list[int]()
    for keys in alike.values():
        for copies in zip(*(ends[key] for key in keys), strict=True):
            listed = [numbers[role.name][i.name] for role, i in copies]
            start[listed[0]] = len(slots)
            slots += listed
    first = {keys[0]: len(keys) for keys in alike.values()}
    told = [(role, i) for role, i in program.instructions() if getattr(i.act, "key", None) in first]
    sends, receives = ([end for end in told if isinstance(end[1].act, kind)] for kind in (Send, Receive))
    return _Ends(sends, receives, first, start, np.array(slots, np.int64))


def _messages(prices: Prices, ports: Ports, slots: dict[str, dict[str, int]]) -> Columns:
    """A send and its receive are one activity of both processors and of every port between them."""
    program, costs = prices.program, prices.costs
    w, speed = costs.wiring, speeds(costs, program)
    ends = _told_once(program, slots, apart=bool(w.congestion or w.crowding or w.queue))
    keys: dict[str, int] = {}
    sent = _end_of(prices, ends.sends, slots, ends.start, keys)
    taken = _end_of(prices, ends.receives, slots, ends.start, keys)
    match, source, target, size = _matched(program, sent, taken), sent.rank, sent.peer, sent.size
    who = np.arange(len(source))
    message, resource, way = ports.routes(source, target)
    work, work2 = sent.core / speed[source], taken.core[match] / speed[target]
    weight, users = size, np.ones(len(size))
    if w.congestion or w.crowding:
        peers = peers_at_once(ends.sends, source, target, program)
        crowds = np.minimum(peers[source], peers[target])
        crowded = (peers[source] > 1).astype(int) + (peers[target] > 1)
        weight = np.choose(crowded, (users, w.congested(size), w.crowded(size, crowds))) * size
    if w.queue:
        users = w.precedence(size, *posted(source, target, releases(ends.sends), program.size))
    copies = np.array([ends.copies[name] for name in keys], np.int64)[sent.key]
    return {
        "latency": sent.latency + taken.latency[match] + way, "least": np.maximum(work, work2), "copies": copies,
        "who": np.concatenate([who, who]), "rank": np.concatenate([source, target]),
        "slot": np.concatenate([sent.slot, taken.slot[match]]), "slots": ends.slots,
        "at": np.concatenate([who, who, message]), "resource": np.concatenate([source, target, resource]),
        "amount": np.concatenate([work, work2, (weight / users)[message]]),
        "times": np.concatenate([np.ones(2 * len(who)), users[message]]),
        "source": source, "target": target, "size": size * copies,
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class _End:
    """One end of every message: the number of its key, its rank and the `peer`'s, where its slots start; what it takes
    there, and its bytes. Shape [messages] each."""

    key: Ints
    rank: Ints
    peer: Ints
    slot: Ints
    core: Reals
    latency: Reals
    size: Reals


def _end_of(
    prices: Prices, found: Sequence[tuple[Role, Instruction]], slots: dict[str, dict[str, int]],
    start: Mapping[int, int], keys: dict[str, int],
) -> _End:  # fmt: skip
    """The end that these instructions are; `keys` numbers the keys of messages, and takes in those that are new."""
    program = prices.program
    ranks = {role.name: np.array(role.ranks, np.int64) for role in program.roles}
    width, ranked = [len(role.ranks) for role, _ in found], cache(_ranked)
    peers, numbers, rows = [np.zeros(0, np.int64)], [], []
    posts = {role.name: prices.post(role) for role in program.roles}
    for role, i in found:
        act = i.act
        assert isinstance(act, Send | Receive)
        demand = prices.of(act, post=posts[role.name])
        peers.append(ranked(peers_of(act), len(role.ranks)))
        numbers.append((keys.setdefault(act.key, len(keys)), start[slots[role.name][i.name]]))
        rows.append((demand.core, demand.latency, program.payload(act)))
    key, slot = np.repeat(np.array(numbers, np.int64).reshape(-1, 2), width, axis=0).T
    core, latency, size = np.repeat(np.array(rows, np.float64).reshape(-1, 3), width, axis=0).T
    mine = np.concatenate([np.zeros(0, np.int64), *(ranks[role.name] for role, _ in found)])
    return _End(key, mine, np.concatenate(peers), slot, core, latency, size)


def _matched(program: Program, sent: _End, taken: _End) -> Ints:
    """For each message that is sent the place of its other end. Raises ProgramError where either has none."""
    p = program.size
    one, other = (sent.key * p + sent.rank) * p + sent.peer, (taken.key * p + taken.peer) * p + taken.rank
    mine, yours = np.argsort(one, kind="stable"), np.argsort(other, kind="stable")
    if not np.array_equal(one[mine], other[yours]):
        raise ProgramError(f"{program.name}: a message is sent and not received, or received and not sent")
    match = np.empty_like(mine)
    match[mine] = yours
    return match


def _ranked(numbers: tuple[int, ...], ranks: int) -> Ints:
    """One number for each of so many ranks, of a field that may have one for all."""
    return np.broadcast_to(np.array(numbers, np.int64), ranks)


def speeds(costs: Costs, program: Program) -> Reals:
    """How fast each rank's device is beside the one that the costs were measured on."""
    return np.array([costs.speed(rank) for rank in range(program.size)], np.float64)


def role_of(program: Program) -> Ints:
    """The number of each rank's role."""
    found = np.zeros(program.size, np.int64)
    for number, role in enumerate(program.roles):
        found[list(role.ranks)] = number
    return found


def sent_by(program: Program, transfers: Transfers) -> tuple[int, ...]:
    """Payload bytes that each rank sends in one step."""
    total = np.bincount(transfers.source, transfers.size, program.size)
    return tuple(int(bytes_) // max(program.steps, 1) for bytes_ in total)


def traffic_of(program: Program, transfers: Transfers) -> tuple[tuple[int, int, Bytes], ...]:
    """Payload bytes of every pair of ranks that speaks in a step: (source, target, bytes). A collective is a ring."""
    pairs, entry = np.unique(transfers.source * program.size + transfers.target, return_inverse=True)
    total = np.bincount(entry, transfers.size, len(pairs))
    speaking = np.flatnonzero(total)
    return tuple(
        (int(pair) // program.size, int(pair) % program.size, int(size) // max(program.steps, 1))
        for pair, size in zip(pairs[speaking], total[speaking], strict=True)
    )
