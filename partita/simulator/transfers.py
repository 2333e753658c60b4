"""What ranks do together in one round: collectives and messages, each one activity of all who take part, as arrays.

Send on rank 0 ------+                     Collective on ranks 0, 1, 2 ---+
                     transfer                                             transfer
Receive on rank 1 ---+                     its processors and ports   ----+
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from partita.arrays import Flags, Ints, Reals
from partita.cost.costs import Costs
from partita.cost.prices import Prices
from partita.program.program import Program
from partita.simulator.collectives import collectives, flowing
from partita.simulator.hops import Columns
from partita.simulator.messages import messages
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
    speed, handling = speeds(costs, program), handlings(costs, program)
    together = collectives(prices, ports, slots, speed, handling, role_of(program))
    for part in (*together, flowing(messages(prices, ports, slots, handling))):
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


def speeds(costs: Costs, program: Program) -> Reals:
    """How fast each rank's device is beside the one that its costs were measured on."""
    return np.array([costs.own(rank).speed(rank) for rank in range(program.size)], np.float64)


def handlings(costs: Costs, program: Program) -> Reals:
    """The same in what messages and collectives ask of it."""
    return np.array([costs.handling(rank) for rank in range(program.size)], np.float64)


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
