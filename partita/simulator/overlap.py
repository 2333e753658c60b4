"""What moves and what computes at one time on a rank hold each other up.

A hop waits until the thread that serves it is given a time slice, or until a quota that computing has used up is filled
again; and what the kernel does for a message is charged to whatever computes just then, which finds less of its own in
the caches afterwards.

computing         |BBBBBBBB|                B, beside A       |BBBBBBBBbb|       b: A's disturbance
A, alone          |======|
A, beside B       |-----------==|           at 1 / factor of its speed while B runs

So does coding in another lane: it goes through memory, and what computes has to fetch its own again.

A backend's sum right behind another, with nothing computed in between or beside it, finds its thread spinning, which
takes of the core what the peers' threads need:

computing         |BBBBBBBB|
sums              |  A  |  A  |   A   |    A    |

The clock shares out core-seconds, of which a hop needs few, and knows of no slices. So it runs a few times: each run
shows what goes on beside each of them, and gives the next run what that one takes beyond its own seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from partita.arrays import Ints, Reals
from partita.cost.costs import Costs
from partita.cost.demand import demand_of, hop_parts
from partita.cost.wiring import PASSES, circle_of
from partita.program.instruction import Act, Collective, Compute, Decode, Encode, Receive, Send
from partita.program.program import Program, Role
from partita.program.space import Kind, Space
from partita.simulator.expand import Layout
from partita.simulator.transfers import speeds
from partita.units import Seconds
from partita.wire.algorithms import by_messages, course
from partita.wire.loads import loads_of

SOON: Final[Seconds] = 1e-9


@dataclass(frozen=True, slots=True)
class Move:
    """The instruction at a `place` of a role that moves something, or codes in a lane of its own: the `factor` by which
    it takes longer beside computing, and the core-seconds that this takes longer beside all of it, what is sent and
    received and what is coded; of a sum what it takes longer, and what core-seconds more, right `behind` another."""

    place: int
    factor: float
    disturbance: Seconds
    coding: Seconds = 0.0
    behind: tuple[Seconds, Seconds] = (0.0, 0.0)


Moves = dict[str, list[Move]]


def moves_of(program: Program, costs: Costs) -> Moves:
    """By role, what moves something or codes, and has to do with what computes beside it."""
    found: Moves = {}
    if costs.wiring.undisturbed:
        return found
    for role in program.roles:
        for place, i in enumerate(role.instructions):
            coding = costs.wiring.coding * (_coded(program, i.act, costs) if i.lane != role.leading else 0.0)
            disturbance, factor, behind = 0.0, 1.0, (0.0, 0.0)
            if isinstance(i.act, Collective | Send | Receive):
                disturbance = costs.wiring.disturbance * program.payload(i.act) * _passes(i.act)
                factor = _slowdown(program, i.act, costs)
            if isinstance(i.act, Collective) and i.act.kind is Kind.ALL_REDUCE and not by_messages(i.act):
                circle = circle_of(i.act.groups[0], costs.cluster)
                behind = costs.wiring.behind(program.payload(i.act), circle)
            if factor > 1 or disturbance > 0 or coding > 0 or any(behind):
                found.setdefault(role.name, []).append(Move(place, factor, disturbance, coding, behind))
    return found


def _coded(program: Program, act: Act, costs: Costs) -> Seconds:
    """Core-seconds that a rank codes for an act."""
    if isinstance(act, Encode | Decode):
        return demand_of(costs, program, act).core
    if not isinstance(act, Collective) or act.codec is None:
        return 0.0
    ranks = len(act.groups[0])
    return sum(cores.before + cores.after for _, cores in hop_parts(costs, program, act, ranks)) / ranks


def extra_seconds(
    layout: Layout, costs: Costs, moves: Moves, start: Reals, end: Reals, extra: Reals
) -> tuple[Reals, Reals]:
    """(seconds that each activity which moves something takes beyond its own, core-seconds that each one takes beyond
    its own), given what goes on beside them, from times in which those that move took `extra` seconds more. Who move
    something together wait for the slowest of them."""
    found, more, fast = np.zeros(len(start)), np.zeros(len(start)), speeds(costs, layout.program)
    for role in layout.program.roles:
        moved = moves.get(role.name, [])
        for kind, first in enumerate(layout.kinds[role.name].tolist() if moved else ()):
            at = layout.at(role)[:, :, kind]
            busy = at[:, np.flatnonzero(role.computing)].ravel()
            computing = _busy(start[busy], end[busy])
            _held_up(moved, at, computing, start, end, extra, found)
            if sums := [move for move in moved if any(move.behind)]:
                device = costs.cluster.devices[first]
                rested = costs.wiring.rested / (device.pace / device.speed)  # by the clock
                _right_behind(sums, at, computing, rested, fast[first], start, end, found, more)
            _disturbed(role, moved, at, fast[first], start, end, more)
        if moved and _serves(role):
            _felt_beside(layout, role, moved, costs, start, end, more)
    return found, more


def _held_up(
    moved: list[Move], at: Ints, computing: tuple[Reals, Reals], start: Reals, end: Reals, extra: Reals, found: Reals
) -> None:  # fmt: skip
    """Put into `found` the seconds that what a rank moves takes longer beside its own computing, in the activities `at`
    of shape [rounds, instructions]."""
    moments, computed = computing
    for move in moved:
        if move.factor == 1.0:
            continue
        mine = at[:, move.place]
        own = end[mine] - start[mine] - extra[mine]
        progress = moments - (1 - 1 / move.factor) * computed
        done = np.interp(np.interp(start[mine], moments, progress) + own, progress, moments)
        found[mine] = np.maximum(found[mine], done - start[mine] - own)


def _right_behind(
    sums: list[Move], at: Ints, computing: tuple[Reals, Reals], rested: Seconds, speed: float, start: Reals,
    end: Reals, found: Reals, more: Reals,
) -> None:  # fmt: skip
    """Put into `found` and `more` what sums take longer right behind others, less the more is computed between them:
    nothing after `rested` seconds of that."""
    mine = at[:, [move.place for move in sums]]
    part = np.maximum(1.0 - _computed_since(start[mine], end[mine], *computing) / rested, 0.0)
    waits, cores = np.array([move.behind for move in sums]).T
    found[mine] = np.maximum(found[mine], part * waits)
    more[mine] = np.maximum(more[mine], part * cores / speed)


def _disturbed(
    role: Role, moved: list[Move], at: Ints, speed: float, start: Reals, end: Reals, more: Reals
) -> None:  # fmt: skip
    """Add to `more` what computing takes longer beside what its rank moves, and the leading lane's beside what others
    code."""
    computes = np.flatnonzero(role.computing)
    leads = np.array([k for k in computes.tolist() if role.instructions[k].lane == role.leading], np.int64)
    places = at[:, [move.place for move in moved]]
    felt = 0.0 if _serves(role) else 1.0
    for met_by, each in ((computes, [felt * m.disturbance for m in moved]), (leads, [m.coding for m in moved])):
        busy = at[:, met_by].ravel()
        spent = _poured(start[places.ravel()], end[places.ravel()], np.tile(each, len(places)))
        more[busy] += _met(start[busy], end[busy], spent) / speed


def _serves(role: Role) -> bool:
    """Whether its ranks compute no part of the model."""
    return not role.acts(Compute)


def _felt_beside(
    layout: Layout, server: Role, moved: list[Move], costs: Costs, start: Reals, end: Reals, more: Reals
) -> None:
    """Add to `more` what the messages of a server take of all ranks on its machine, each an even part: whoever has the
    core is interrupted for them, and shares its caches; the server itself is seldom busy."""
    at, fast, roles = layout.at(server), speeds(costs, layout.program), layout.program.roles
    amounts = np.array([move.disturbance for move in moved])
    for kind, first in enumerate(layout.kinds[server.name].tolist()):
        host = next((set(host.ranks) for host in costs.hosts if first in host.ranks), {first})
        alike = sum(rank in host for rank, of in zip(server.ranks, layout.kind(server), strict=True) if of == kind)
        places = at[:, [move.place for move in moved], kind].ravel()
        each = np.tile(amounts * alike / len(host), len(places) // len(moved))
        spent = _poured(start[places], end[places], each)
        for role in roles:
            for other, one in enumerate(layout.kinds[role.name].tolist()):
                busy = layout.at(role)[:, np.flatnonzero(role.computing), other].ravel()
                more[busy] += _met(start[busy], end[busy], spent) / fast[one] * (one in host)


def _met(start: Reals, end: Reals, spent: tuple[Reals, Reals]) -> Reals:
    """What is poured out while each of these lasts."""
    return np.interp(end, *spent) - np.interp(start, *spent)


def _computed_since(start: Reals, end: Reals, moments: Reals, computed: Reals) -> Reals:
    """Seconds in which a rank computes between the end of its last sum before each of these and its own end; `computed`
    has those before each of the `moments`. Infinite before the first."""
    ends = np.sort(end.ravel())
    last = np.append(-np.inf, ends)[np.searchsorted(ends, start + SOON, "right")]
    found: Reals = np.interp(end, moments, computed) - np.interp(last, moments, computed)
    return np.where(np.isfinite(last), found, np.inf)


def _slowdown(program: Program, act: Collective | Send | Receive, costs: Costs) -> float:
    """The factor by which it takes longer beside computing. A collective that goes by messages is as slow as these."""
    size = program.payload(act)
    if isinstance(act, Collective):
        if not by_messages(act):
            parts = act.kind in (Kind.REDUCE_SCATTER, Kind.ALL_GATHER)
            return costs.wiring.slowdown(size, "gather" if parts else "sum")
        ranks = len(act.groups[0])
        schedule, edges = course(program, act, ranks)
        hops = loads_of(schedule, *program.extent(act, ranks), act.codec, act.density, edges)
        most = max((hop.size / max(hop.messages, 1) for hop in hops), default=0.0)
        return costs.wiring.slowdown(int(most), "hop")
    return 1.0 if act.space is Space.VALUE else costs.wiring.slowdown(size, "message")  # who waits computes nothing


def _passes(act: Collective | Send | Receive) -> float:
    """How many times a rank sends or receives the bytes of an instruction; a collective is a ring."""
    if not isinstance(act, Collective):
        return 1.0
    return 2 * PASSES.get(act.kind, 2) * (1 - 1 / len(act.groups[0]))


def _busy(start: Reals, end: Reals) -> tuple[Reals, Reals]:
    """Moments from 0 on, and the seconds before each in which one of these spans or more was running."""
    order = np.argsort(start, kind="stable")
    start, until = start[order], np.maximum.accumulate(end[order])
    first = np.append(True, start[1:] > until[:-1])[: len(start)]
    opens, closes = start[first], until[np.append(first[1:], True)[: len(start)]]
    moments = np.concatenate([[0.0], np.stack([opens, closes], axis=1).ravel(), [2 * until.max(initial=0.0) + 1e6]])
    inside = np.concatenate([[0.0], np.stack([np.zeros(len(opens)), closes - opens], axis=1).ravel(), [0.0]])
    return moments, np.cumsum(inside)


def _poured(start: Reals, end: Reals, amounts: Reals) -> tuple[Reals, Reals]:
    """Moments from 0 on, and what has been poured out before each, where each span pours its amount out evenly."""
    lasts = np.maximum(end - start, 1e-9)
    moments = np.concatenate([[0.0], start, start + lasts])
    change = np.concatenate([[0.0], amounts / lasts, -amounts / lasts])
    order = np.argsort(moments, kind="stable")
    moments, rate = moments[order], np.cumsum(change[order])
    return moments, np.concatenate([[0.0], np.cumsum(rate[:-1] * np.diff(moments))])
