"""The event clock: when each activity starts and ends, given what it waits for, its lanes and its demands.

Moments. Events less than 1e-12 (relative) apart are one moment. In a moment, first all activities that end are recorded
and release their lanes and successors. Successors without predecessors left become ready, or end at once where their
guard has finished. When no more end, gates open for those that wait at them. Then a ready activity starts that has the
lowest (priority, ready time, index) on each of its lanes, if all of these are free; a lane thus stays reserved for the
first in its line while that one waits for another lane, as a worker blocks in a collective. A lane is free while any of
its credit is left. Activities that last no time end in the same moment, and the moment begins anew.

Sharing. A resource r offers every running activity that demands it the same allotment phi_r, in units a second:

    x_i = min(top_i, min over r of phi_r / d_ir)   with   sum_i d_ir x_i <= capacity_r   (x_i: work's share a second)

where d_ir is the total demand of activity i on r, and top_i its speed when it runs alone: 1 / least, or what its
resources give at their peak. phi_r is inf where the users of r cannot fill it; otherwise r is full. So each activity is
limited by its own top speed, or by a full resource of which no other user gets a larger allotment. This is max-min
fairness (Bertsekas & Gallager, Data Networks, 1992, section 6.5) over vector demands, the bottleneck fairness of Dolev
et al. (No justified complaints, 2012).

Solving for phi. Equal parts of each resource are a lower bound of phi; what then fills each resource is an upper bound;
what fills it given that is a higher lower bound; and so on until the bounds meet. Where they stop short of each other,
the allotments are set halfway. In the end all speeds grow in proportion until each activity meets its top or a full
resource (as in DRF, Ghodsi et al., 2011), so that no capacity is exceeded or wasted even where the bounds did not meet.
A resource that its users could not fill even at their top speeds limits nobody, so only activities that are connected
through the other resources are computed again.
"""

from __future__ import annotations

import numpy as np

from partita.arrays import Reals
from partita.errors import ProgramError
from partita.simulator.activities import Activities, Resources
from partita.simulator.clock_loop import run
from partita.simulator.clock_state import state_of, work_of


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
