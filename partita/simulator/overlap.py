"""Collectives that take longer while their ranks compute: a hop waits until the thread that serves it is given a time
slice, or until a quota that computing has used up is filled again.

computing         |BBBBBBBB|
A, alone          |======|
A, beside B       |-----------==|     at 1 / factor of its speed while B runs

The clock shares out core-seconds, of which a hop needs few, and knows of no slices. So it runs a few times: each run
shows what computes beside each collective, and gives the next run what that one takes beyond its own seconds.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from partita.cost.costs import Costs
from partita.program.instruction import Collective, Receive, Send
from partita.program.program import Program
from partita.simulator.activities import Reals
from partita.simulator.expand import Layout


def factors_of(program: Program, costs: Costs) -> dict[str, float]:
    """By how much each collective takes longer beside computing, where it does."""
    acts = {i.name: i.act for _, i in program.instructions() if isinstance(i.act, Collective)}
    found = (
        {name: costs.wiring.slowdown(program.payload(act)) for name, act in acts.items()}
        if costs.wiring.overlap
        else {}
    )
    return {name: factor for name, factor in found.items() if factor > 1}


def extra_seconds(layout: Layout, factors: Mapping[str, float], start: Reals, end: Reals, extra: Reals) -> Reals:
    """What each activity takes beyond its own seconds, given what computes while it runs, from times in which it took
    `extra` seconds. A collective waits for the slowest of its ranks."""
    found = np.zeros(len(start))
    for role in layout.program.roles:
        moving = [isinstance(i.act, Collective | Send | Receive) for i in role.instructions]
        met = [(j, factors[i.name]) for j, i in enumerate(role.instructions) if i.name in factors]
        at = layout.at(role)
        for kind in range(at.shape[2]) if met else ():
            busy = at[:, np.flatnonzero(~np.array(moving)), kind].ravel()
            moments, computed = _busy(start[busy], end[busy])
            for j, factor in met:
                mine = at[:, j, kind]
                own = end[mine] - start[mine] - extra[mine]
                progress = moments - (1 - 1 / factor) * computed
                done = np.interp(np.interp(start[mine], moments, progress) + own, progress, moments)
                found[mine] = np.maximum(found[mine], done - start[mine] - own)
    return np.maximum(found, 0.0)


def _busy(start: Reals, end: Reals) -> tuple[Reals, Reals]:
    """Moments from 0 on, and the seconds before each in which one of these spans or more was running."""
    order = np.argsort(start, kind="stable")
    start, until = start[order], np.maximum.accumulate(end[order])
    first = np.append(True, start[1:] > until[:-1])[: len(start)]
    opens, closes = start[first], until[np.append(first[1:], True)[: len(start)]]
    moments = np.concatenate([[0.0], np.stack([opens, closes], axis=1).ravel(), [2 * until.max(initial=0.0) + 1e6]])
    inside = np.concatenate([[0.0], np.stack([np.zeros(len(opens)), closes - opens], axis=1).ravel(), [0.0]])
    return moments, np.cumsum(inside)
