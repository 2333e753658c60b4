"""Messages and collectives that take longer while their ranks compute: a hop waits until the thread that serves it is
given a time slice, or until a quota that computing has used up is filled again.

computing         |BBBBBBBB|
A, alone          |======|
A, beside B       |-----------==|     at 1 / factor of its speed while B runs

The clock shares out core-seconds, of which a hop needs few, and knows of no slices. So it runs a few times: each run
shows what computes beside each of them, and gives the next run what that one takes beyond its own seconds.
"""

from __future__ import annotations

import numpy as np

from partita.cost.costs import Costs
from partita.program.instruction import Collective, Receive, Send
from partita.program.program import Program
from partita.simulator.activities import Reals
from partita.simulator.expand import Layout

Factors = dict[str, list[tuple[int, float]]]


def factors_of(program: Program, costs: Costs) -> Factors:
    """By role, places of instructions that move something and take longer beside computing, and by how much."""
    found: Factors = {}
    if not costs.wiring.overlap and not costs.wiring.message_overlap:
        return found
    for role in program.roles:
        for place, i in enumerate(role.instructions):
            if isinstance(i.act, Collective | Send | Receive):
                factor = costs.wiring.slowdown(program.payload(i.act), message=not isinstance(i.act, Collective))
                if factor > 1:
                    found.setdefault(role.name, []).append((place, factor))
    return found


def extra_seconds(layout: Layout, factors: Factors, start: Reals, end: Reals, extra: Reals) -> Reals:
    """What each activity takes beyond its own seconds, given what computes while it runs, from times in which it took
    `extra` seconds. Who move something together wait for the slowest of them."""
    found = np.zeros(len(start))
    for role in layout.program.roles:
        at, moves = layout.at(role), factors.get(role.name, [])
        computes = [not isinstance(i.act, Collective | Send | Receive) for i in role.instructions]
        for kind in range(at.shape[2]) if moves else ():
            busy = at[:, np.flatnonzero(computes), kind].ravel()
            moments, computed = _busy(start[busy], end[busy])
            for place, factor in moves:
                mine = at[:, place, kind]
                own = end[mine] - start[mine] - extra[mine]
                progress = moments - (1 - 1 / factor) * computed
                done = np.interp(np.interp(start[mine], moments, progress) + own, progress, moments)
                found[mine] = np.maximum(found[mine], done - start[mine] - own)
    return found


def _busy(start: Reals, end: Reals) -> tuple[Reals, Reals]:
    """Moments from 0 on, and the seconds before each in which one of these spans or more was running."""
    order = np.argsort(start, kind="stable")
    start, until = start[order], np.maximum.accumulate(end[order])
    first = np.append(True, start[1:] > until[:-1])[: len(start)]
    opens, closes = start[first], until[np.append(first[1:], True)[: len(start)]]
    moments = np.concatenate([[0.0], np.stack([opens, closes], axis=1).ravel(), [2 * until.max(initial=0.0) + 1e6]])
    inside = np.concatenate([[0.0], np.stack([np.zeros(len(opens)), closes - opens], axis=1).ravel(), [0.0]])
    return moments, np.cumsum(inside)
