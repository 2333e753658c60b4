"""The event clock: when each activity starts and ends, given what it waits for, its lanes and what it draws on.

Moments. Events less than a part in 1e12 apart are one moment. In it first all that end is recorded and releases its
lanes and successors; those released become ready, or end at once where their guard has finished; when no more end,
gates open for those who wait at them; then a ready activity starts that has the lowest (priority, ready time, index) on
each of its lanes, all of them free (so a lane is kept for its first in line while that one waits for another lane, as a
worker blocks in a collective). A lane is free while any of its credit is left. What lasts no time ends in the same
moment, and the moment begins anew.

Sharing. A resource r offers every running activity that demands it the same allotment phi_r, units a second:

    x_i = min(top_i, min over r of phi_r / d_ir)   with   sum_i d_ir x_i <= capacity_r      (x_i: of its work, a second)

where d_ir is what activity i demands of r in all and top_i its speed alone: 1 / least, or what its resources give at
their peak. phi_r is inf where the users of r cannot fill it, else r is full: so everyone is held back by its own top
or by a full resource of which no one gets more. This is max-min fairness (Bertsekas & Gallager, Data Networks, 1992,
section 6.5) over vector demands, the bottleneck fairness of Dolev et al. (No justified complaints, 2012).

    equal parts: too low -> what then fills each resource: too high -> what fills it given that: higher than the first

The two sides close in on the law. Where they stop short of each other, allotments go halfway instead; and in the end
all grow in one proportion until they meet a top or a full resource, those who meet none further on (as in DRF, Ghodsi
et al., 2011), so that no capacity is exceeded or wasted even where no closeness was reached. Resources that all their
users at their tops could not fill bind nobody: only what hangs together through the others is recomputed.
"""

from __future__ import annotations

import numpy as np

from partita.errors import ProgramError
from partita.simulator.activities import Activities, Reals, Resources
from partita.simulator.clockwork import run
from partita.simulator.workings import state_of, work_of


def advance(activities: Activities, resources: Resources) -> tuple[Reals, Reals]:
    """(start, end) seconds of every activity from time 0; the same input gives the same bits.

    Raises ProgramError if some never end, because what they wait for never comes.
    """
    work = work_of(activities, resources)
    state = state_of(work, activities.need)
    run(work, state)
    stuck = np.flatnonzero(np.isinf(state.end))
    if len(stuck):
        shown = ", ".join(map(str, stuck[:8])) + (", ..." if len(stuck) > 8 else "")
        raise ProgramError(
            f"{len(stuck)} of {activities.size} activities never become ready ({shown}); break the circle of waiting, "
            "or lower their need"
        )
    return state.start, state.end
