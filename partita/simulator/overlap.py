"""What moves and what computes at one time on a rank hold each other up.

A hop waits until the thread that serves it is given a time slice, or until a quota that computing has used up is filled
again; and what the kernel does for a message is charged to whatever computes just then, which finds less of its own in
the caches afterwards.

computing         |BBBBBBBB|                B, beside A       |BBBBBBBBbb|       b: A's disturbance
A, alone          |======|
A, beside B       |-----------==|           at 1 / factor of its speed while B runs

It waits for the core, so it waits as well, though less, where only another rank computes that has a part of that core.

So does coding in another lane: it goes through memory, and what computes has to fetch its own again.

A backend's sum right behind another, with nothing computed in between or beside it, finds its thread spinning, which
takes of the core what the peers' threads need:

computing         |BBBBBBBB|
sums              |  A  |  A  |   A   |    A    |

The clock shares out core-seconds, of which a hop needs few, and knows of no slices. So it runs a few times: each run
shows what goes on beside each of them, and gives the next run what that one takes beyond its own seconds.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from partita.arrays import Ints, Reals
from partita.cost.costs import Costs
from partita.program.instruction import Compute
from partita.program.program import Role
from partita.simulator.expand import Layout
from partita.simulator.moves import Move, Moves
from partita.simulator.progress import Progress, covered, poured, slowed
from partita.simulator.transfers import speeds
from partita.units import Seconds

SOON: Final[Seconds] = 1e-9


def extra_seconds(
    layout: Layout, costs: Costs, moves: Moves, start: Reals, end: Reals, extra: Reals
) -> tuple[Reals, Reals]:
    """(seconds that each activity which moves something takes beyond its own, core-seconds that each one takes beyond
    its own), given what goes on beside them, from times in which those that move took `extra` seconds more. Who move
    something together wait for the slowest of them."""
    turn = _Turn(layout, costs, start, end, extra)
    for role in layout.program.roles:
        moved = moves.get(role.name, [])
        for kind, first in enumerate(layout.kinds[role.name].tolist() if moved else ()):
            at = layout.at(role)[:, :, kind]
            computing = turn.computing(at, role)
            turn.hold_up(moved, at, computing, turn.mates_computing(first))
            turn.follow([move for move in moved if any(move.behind)], at, computing, first)
            turn.disturb(role, moved, at, first)
        if moved and _serves(role):
            turn.disturb_neighbours(role, moved)
    return turn.seconds, turn.cores


class _Turn:
    """What one run of the clock gives the next one: `seconds` and `cores` beyond their own of each activity.

    Activities `at` are of one kind of a role's ranks, shape [rounds, instructions]; `first` is the first such rank.
    """

    def __init__(self, layout: Layout, costs: Costs, start: Reals, end: Reals, extra: Reals) -> None:
        self.layout, self.costs, self.start, self.end = layout, costs, start, end
        self.own = end - start - extra
        self.seconds, self.cores = np.zeros(len(start)), np.zeros(len(start))
        self.speeds = speeds(costs, layout.program)

    def computing(self, at: Ints, role: Role) -> Progress:
        """The seconds in which such a rank computes."""
        busy = at[:, np.flatnonzero(role.computing)].ravel()
        return covered(self.start[busy], self.end[busy])

    def mates_computing(self, rank: int) -> Progress | None:
        """The seconds in which a rank that stands on the same core computes, the rank itself among them; None where no
        other one stands there."""
        mates = next((set(host.ranks) for host in self.costs.hosts if rank in host.ranks and host.cores == 1), {rank})
        if mates == {rank}:
            return None
        busy = np.concatenate([
            self.layout.at(role)[:, np.flatnonzero(role.computing), kind].ravel()
            for role in self.layout.program.roles
            for kind, first in enumerate(self.layout.kinds[role.name].tolist())
            if first in mates
        ])  # fmt: skip
        return covered(self.start[busy], self.end[busy])

    def hold_up(self, moved: list[Move], at: Ints, computing: Progress, mates: Progress | None) -> None:
        """What moves goes at 1 / factor of its speed while its own rank computes, and at 1 / others of it while only
        its `mates` on the same core do."""
        for move in moved:
            others = 1 / move.others if mates else 1.0
            own = min(1 / move.factor, others)
            if own == 1.0:
                continue
            mine = at[:, move.place]
            progress = slowed((computing, others - own), *([(mates, 1 - others)] if mates else []))
            done = progress.when(progress.by(self.start[mine]) + self.own[mine])
            self.seconds[mine] = np.maximum(self.seconds[mine], done - self.start[mine] - self.own[mine])

    def follow(self, sums: list[Move], at: Ints, computing: Progress, first: int) -> None:
        """Sums take longer right behind others, less the more is computed between them: nothing after `rested` seconds
        of that."""
        if not sums:
            return
        mine, device = at[:, [move.place for move in sums]], self.costs.cluster.devices[first]
        rested = self.costs.wiring.rested / (device.pace / device.speed)  # by the clock
        since = _computed_since(self.start[mine], self.end[mine], computing)
        part = np.maximum(1.0 - since / rested, 0.0)
        waits, cores = np.array([move.behind for move in sums]).T
        self.seconds[mine] = np.maximum(self.seconds[mine], part * waits)
        self.cores[mine] = np.maximum(self.cores[mine], part * cores / self.speeds[first])

    def disturb(self, role: Role, moved: list[Move], at: Ints, first: int) -> None:
        """Computing takes longer beside what its rank moves, and the leading lane's beside what others code."""
        computes = np.flatnonzero(role.computing)
        leads = np.array([k for k in computes.tolist() if role.instructions[k].lane == role.leading], np.int64)
        places = at[:, [move.place for move in moved]]
        felt = 0.0 if _serves(role) else 1.0
        for met_by, each in ((computes, [felt * m.disturbance for m in moved]), (leads, [m.coding for m in moved])):
            spent = self._spent(places.ravel(), np.tile(each, len(places)))
            self._meet(at[:, met_by].ravel(), spent, self.speeds[first])

    def disturb_neighbours(self, server: Role, moved: list[Move]) -> None:
        """The messages of a server take of all ranks on its machine, each an even part: whoever has the core is
        interrupted for them, and shares its caches; the server itself is seldom busy."""
        at, layout = self.layout.at(server), self.layout
        amounts = np.array([move.disturbance for move in moved])
        for kind, first in enumerate(layout.kinds[server.name].tolist()):
            host = next((set(host.ranks) for host in self.costs.hosts if first in host.ranks), {first})
            places = at[:, [move.place for move in moved], kind].ravel()
            spent = self._spent(places, np.tile(amounts / len(host), len(places) // len(moved)))
            for role in layout.program.roles:
                for other, one in enumerate(layout.kinds[role.name].tolist()):
                    if one in host:
                        busy = layout.at(role)[:, np.flatnonzero(role.computing), other].ravel()
                        self._meet(busy, spent, self.speeds[one])

    def _spent(self, places: Ints, amounts: Reals) -> Progress:
        return poured(self.start[places], self.end[places], amounts)

    def _meet(self, busy: Ints, spent: Progress, speed: float) -> None:
        self.cores[busy] += spent.during(self.start[busy], self.end[busy]) / speed


def _serves(role: Role) -> bool:
    """Whether its ranks compute no part of the model."""
    return not role.acts(Compute)


def _computed_since(start: Reals, end: Reals, computing: Progress) -> Reals:
    """Seconds in which a rank computes between the end of its last sum before each of these and its own end. Infinite
    before the first."""
    ends = np.sort(end.ravel())
    last = np.append(-np.inf, ends)[np.searchsorted(ends, start + SOON, "right")]
    return np.where(np.isfinite(last), computing.during(last, end), np.inf)
