"""The messages of one round as transfers: each is one activity of its sender, its receiver and the ports between.

microbatch 0   F0#0 ----      messages that differ in their microbatch alone are worked out once, and told of all
           1        F0#1 ---
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from partita.arrays import Ints, Reals
from partita.cost.prices import Prices
from partita.errors import ProgramError
from partita.program.alike import doing_of
from partita.program.flight import peers_of
from partita.program.instruction import Instruction, Receive, Send
from partita.program.program import Program, Role
from partita.simulator.crowds import peers_at_once, posted, releases
from partita.simulator.hops import Columns
from partita.simulator.ports import Ports


def messages(prices: Prices, ports: Ports, slots: dict[str, dict[str, int]], handling: Reals) -> Columns:
    """The columns of Transfers for all messages: a send and its receive are one activity of both processors, of which
    each has its speed in `handling` it, and of every port between them. `slots` numbers the instructions of each role
    by name. Raises ProgramError for a message with one end.
    """
    program, w = prices.program, prices.costs.wiring
    ends = _distinct(program, slots, apart=bool(w.congestion or w.crowding or w.queue))
    keys: dict[str, int] = {}
    sent = _end_of(prices, ends.sends, slots, ends.start, keys)
    taken = _end_of(prices, ends.receives, slots, ends.start, keys)
    match, source, target, size = _matched(program, sent, taken), sent.rank, sent.peer, sent.size
    who = np.arange(len(source))
    message, resource, way = ports.routes(source, target)
    work, work2 = sent.core / handling[source], taken.core[match] / handling[target]
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
class _Distinct:
    """The `sends` and `receives` of messages that differ in more than their microbatch. Each stands for `copies` by its
    key; the slots of an end's copies are `slots` from `start[its own slot]` on."""

    sends: Sequence[tuple[Role, Instruction]]
    receives: Sequence[tuple[Role, Instruction]]
    copies: Mapping[str, int]
    start: Mapping[int, int]
    slots: Ints


def _distinct(program: Program, numbers: dict[str, dict[str, int]], *, apart: bool) -> _Distinct:
    """The messages of a program, or all of them if they are to stand `apart`; `numbers` are the slots of each role's
    instructions by name."""
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
    return _Distinct(sends, receives, first, start, np.array(slots, np.int64))


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
