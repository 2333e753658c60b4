"""What is alike in a Program on a cluster: ranks, transfers and resources that go through the same at the same times.

Ranks are alike that have one role and equal processors, and whose transfers are alike, instruction by instruction;
transfers that have alike ranks and resources; resources that have alike users. Colours are refined until they tell
apart no more (Weisfeiler & Leman 1968; partitions of this kind are equitable: Godsil & Royle, Algebraic Graph Theory,
2001, section 9.3). Who has one colour sees the same around it, so the clock, which knows no names, gives it the same
times. It suffices to move one rank of each colour: a single straggler among a thousand makes two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from partita.arrays import Ints, Reals
from partita.cost.costs import Costs
from partita.program.program import Policy, Program
from partita.simulator.ports import Ports
from partita.simulator.transfers import Transfers, handlings, role_of, speeds

Colours = NDArray[np.uint64]
FRONT = 16  # resources of one set of users that are compared with all others


@dataclass(frozen=True, eq=False)
class Symmetry:
    """For each rank, transfer and resource the first one that is like it."""

    rank: Ints
    transfer: Ints
    resource: Ints


def no_symmetry(program: Program, ports: Ports, transfers: Transfers) -> Symmetry:
    """The Symmetry of a Program in which no rank, transfer or resource is like another."""
    return Symmetry(np.arange(program.size), np.arange(len(transfers.latency)), np.arange(ports.resources.size))


def symmetry_of(program: Program, costs: Costs, ports: Ports, transfers: Transfers) -> Symmetry:
    """Which ranks, transfers and resources go through the same. None do where anything is decided by who comes first,
    since ties are broken by number; none are looked for on emulated clusters, which are small and share cores."""
    chooses = any(lane.policy is not Policy.ORDER for role in program.roles for lane in role.lanes)
    if chooses or ports.hosts or any(i.need or i.gate for _, i in program.instructions()):
        return no_symmetry(program, ports, transfers)
    table, ranks = ports.resources, program.size
    resource = _mix(table.rate, table.peak, table.burst)
    sheet = np.array(costs.sheet or np.zeros(ranks), np.float64)[:ranks]
    rank = _mix(role_of(program), speeds(costs, program), handlings(costs, program), sheet, resource[:ranks])
    transfer = _mix(transfers.latency, transfers.least)
    count = 0
    while count < (count := sum(len(np.unique(colours)) for colours in (rank, transfer, resource))):
        if count == ranks + len(transfer) + len(resource):
            return no_symmetry(program, ports, transfers)
        seen = _sum(transfers.who, _mix(rank[transfers.rank], transfers.slot), len(transfer))
        drawn = _sum(transfers.at, _mix(resource[transfers.resource], transfers.amount), len(transfer))
        transfer = _mix(transfer, seen, drawn)
        used = _sum(transfers.resource, _mix(transfer[transfers.at], transfers.amount), len(resource))
        met = _sum(transfers.rank, _mix(transfer[transfers.who], transfers.slot), ranks)
        rank, resource = _mix(rank, met, used[:ranks]), _mix(resource, used)
        resource[:ranks] = rank
    return Symmetry(_first(rank), _first(transfer), _first(resource))


def without_idle_ports(transfers: Transfers, ports: Ports) -> Transfers:
    """The transfers without the demands of ports that can hold nobody back: some other port has the same users, and
    each of them takes at least as much of that one's rate. Of a ring's ports about one is left."""
    table, own = ports.resources, ports.cluster.size
    chosen = np.flatnonzero((transfers.resource >= own) & (transfers.resource < len(ports.table[0])))
    chosen = chosen[np.lexsort((transfers.at[chosen], transfers.resource[chosen]))]
    at, (port, start, users) = transfers.at[chosen], np.unique(
        transfers.resource[chosen], return_index=True, return_counts=True
    )  # fmt: skip
    if not len(port):
        return transfers
    plain = (table.peak == table.rate) | (table.burst == 0)
    part = transfers.amount[chosen] * transfers.times[chosen] / table.rate[transfers.resource[chosen]]
    kind = np.where(plain, 0, _mix(table.rate, table.peak, table.burst))[port]
    _, same = np.unique(_mix(kind, np.add.reduceat(_mix(at), start), users), return_inverse=True)
    order = np.argsort(same, kind="stable")
    dropped = np.zeros(len(chosen), np.bool_)
    for ours in np.split(order, np.flatnonzero(np.diff(same[order])) + 1):
        if len(ours) > 1:
            entries = start[ours][:, None] + np.arange(users[ours[0]])
            dropped[entries[_exceeded(part[entries])]] = True
    kept = np.ones(len(transfers.at), np.bool_)
    kept[chosen[dropped]] = False
    return replace(
        transfers, **{name: getattr(transfers, name)[kept] for name in ("at", "resource", "amount", "times", "again")}
    )


def _exceeded(rows: Reals) -> NDArray[np.intp]:
    """The rows that another one, which is not among them, is nowhere below."""
    open = np.arange(len(rows))
    kept: list[np.intp] = []
    while len(open) and len(kept) < FRONT:
        best = open[np.argmax(rows[open].sum(axis=1))]
        kept.append(best)
        open = open[(rows[open] > rows[best]).any(axis=1)]
    return np.setdiff1d(np.arange(len(rows)), [*kept, *open])


def folded(transfers: Transfers, symmetry: Symmetry) -> Transfers:
    """The first transfer of each kind only, as the first ranks and resources of each kind see it.

    There a transfer counts as often as those that are like it draw as much on that resource; and it draws on it again
    if it draws as much on others that are like it. So the clock takes the same steps as for all of them.
    """
    seen = symmetry.rank[transfers.rank] == transfers.rank
    drawn = symmetry.resource[transfers.resource] == transfers.resource
    at, resource, amount = symmetry.transfer[transfers.at], symmetry.resource[transfers.resource], transfers.amount
    first, copies = _counted(at[drawn], resource[drawn], amount[drawn])
    times = copies * transfers.times[drawn][first]
    sole = symmetry.transfer[transfers.at] == transfers.at
    _, copies = _counted(at[sole], resource[sole], amount[sole])
    return replace(
        transfers,
        who=symmetry.transfer[transfers.who[seen]], rank=transfers.rank[seen], slot=transfers.slot[seen],
        at=at[drawn][first], resource=resource[drawn][first], amount=amount[drawn][first], times=times,
        again=copies > 1,
    )  # fmt: skip


def _counted(at: Ints, resource: Ints, amount: Reals) -> tuple[Ints, Reals]:
    """Where each (transfer, resource, amount) comes first, sorted by these, and how often it comes."""
    order = np.lexsort((amount, resource, at))
    fresh = np.ones(len(order), np.bool_)
    fresh[1:] = np.logical_or.reduce([np.diff(column[order]) != 0 for column in (at, resource, amount)])
    start = np.flatnonzero(fresh)
    return order[start], np.diff(np.append(start, len(order))).astype(np.float64)


def _mix(*columns: NDArray[np.generic]) -> Colours:
    """A 64-bit hash of each row: a multiplication and a shift for each column, then the finalizer of splitmix64 (Steele
    et al. 2014)."""
    found = np.full(len(columns[0]), 0x9E3779B97F4A7C15, np.uint64)
    shifted = np.empty_like(found)
    for column in columns:
        whole = column if column.dtype.kind in "fu" else column.astype(np.int64)
        found ^= whole.view(np.uint64)
        found *= np.uint64(0xD1342543DE82EF95)
        found ^= np.right_shift(found, np.uint64(32), out=shifted)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        found ^= np.right_shift(found, np.uint64(shift), out=shifted)
        found *= np.uint64(factor)
    found ^= np.right_shift(found, np.uint64(31), out=shifted)
    return found


def _sum(place: Ints, colours: Colours, size: int) -> Colours:
    """The sum of the colours at each place: a hash of them in any order."""
    found = np.zeros(size, np.uint64)
    np.add.at(found, place, colours)
    return found


def _first(colours: Colours) -> Ints:
    """For each colour the place of the first one that has it."""
    order = np.argsort(colours)
    start = np.flatnonzero(np.diff(colours[order], prepend=colours[order[:1]] + np.uint64(1)))
    first = np.minimum.reduceat(order, start)
    found = np.empty(len(colours), np.int64)
    found[order] = np.repeat(first, np.diff(start, append=len(order)))
    return found
