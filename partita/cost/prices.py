"""What the acts of one program need, each price found once for all acts that have it: microbatches do the same again
and again."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

import numpy as np

from partita.arrays import Reals
from partita.cost.costs import Costs
from partita.cost.demand import Demand, demand_of
from partita.cost.wiring import ALONE, RARELY, Post, circle_of
from partita.program.alike import doing_of
from partita.program.instruction import Act, After, Collective, Compute, Load, Receive, Send, Update
from partita.program.program import Lane, Policy, Program, Role
from partita.units import Seconds

FIRST: Final = " first"  # behind a target, among costs of operators: what the first one of it in a step takes more
SHORT: Final[Seconds] = 2.5e-4  # after which caches still have the worker's code, and what it touched


class Prices:
    """The demands of acts of a program on these costs; lives for one call."""

    def __init__(self, costs: Costs, program: Program) -> None:
        self.costs, self.program = costs, program
        self.known: dict[Hashable, Demand] = {}
        self.roles: dict[str, list[Demand]] = {}

    def of(self, act: Act, *, behind: bool = False, wakes: bool = False, post: Post = RARELY) -> Demand:
        """What an act needs of each rank, of a collective in its first group, or right `behind` another short act that
        moves nothing, though its lane `wakes` up for it, or of a rank with such a `post`. Raises CostError as
        `demand_of`."""
        key = behind, wakes, post, doing_of(act)
        if key not in self.known:
            among = circle_of(act.groups[0], self.costs.cluster) if isinstance(act, Collective) else ALONE
            costs = (self.woken if wakes else self.costs.behind) if behind else self.costs
            self.known[key] = demand_of(costs, self.program, act, among, post)
        return self.known[key]

    def post(self, role: Role) -> Post:
        """How a rank of the role has messages; of no rank where that does not matter."""
        if not self.costs.wiring.posted:
            return RARELY
        moved = [i for i in role.instructions if isinstance(i.act, Send | Receive)]
        many = max(len(moved), 1)
        moments = max(len({i.after for i in moved}), 1)  # what one thing releases is posted at once
        apart = None if self.computing[role.name] else max(self.computing.values()) / many
        return Post(max(moments / max(self.program.steps, 1), 1.0), many / moments, apart)

    @cached_property
    def computing(self) -> dict[str, Seconds]:
        """Core-seconds that a rank of each role computes in a round."""
        return {role.name: sum(self.of(act).core for act in role.acts(Compute)) for role in self.program.roles}

    @cached_property
    def woken(self) -> Costs:
        """Those of acts that find all in the caches, once their lane has woken up."""
        return replace(self.costs.behind, instruction=self.costs.instruction)

    def of_role(self, role: Role) -> list[Demand]:
        """What each instruction of a role needs. In a lane that goes in order one that waits for no other lane finds
        what a short one before it, or one of the same bucket, has left in the caches; an update, whose rule has code
        and state of its own, only what another one has. Where a lane has a thread of its own, it wakes up for what
        another lane lets begin; for a collective's end somebody has woken up already.

            compute   F.................. | P | A |        P behind a long act, A right behind P
            update      ~~> U0     ~~> U1                  each U behind another lane's act

        A rank that computes nothing, such as a server, has all that it touches there all the time.
        """
        if role.name not in self.roles:
            self.roles[role.name] = self._of_role(role)
        return self.roles[role.name]

    def seconds(self, role: Role, ranks: Sequence[int]) -> Reals:
        """Seconds of each instruction of a role on a whole core of these ranks' devices, each by its own sheet, shape
        [instructions, ranks]."""
        sheet = [self.costs.sheet[rank] if self.own else 0 for rank in ranks]
        speeds = np.array([self.costs.own(rank).speed(rank) for rank in ranks])
        cores = {k: [demand.core for demand in (self.own or (self,))[k].of_role(role)] for k in {*sheet}}
        found: Reals = np.array([cores[k] for k in sheet], np.float64).reshape(len(ranks), -1).T / speeds
        return found

    @cached_property
    def own(self) -> tuple[Prices, ...]:
        """The prices by each data sheet, where there are several."""
        return tuple(Prices(sheet, self.program) for sheet in self.costs.sheets)

    @cached_property
    def firsts(self) -> Mapping[str, Seconds]:
        """Target -> core-seconds that the first operator of it takes more, whose code is in no cache; empty where that
        was not measured."""
        return {n.removesuffix(FIRST): more for n, more in self.costs.operators.items() if n.endswith(FIRST)}

    def _met(self, role: Role) -> dict[str, Seconds]:
        """What each segment takes more for targets that the role's step has not met before it; a step begins behind
        the updates of the one before."""
        met, more, updated = set[str](), dict[str, Seconds](), False
        for i in role.instructions if self.firsts else ():
            updated = updated or isinstance(i.act, Update)
            if isinstance(i.act, Compute):
                segment = self.program.segment[i.act.segment]
                if updated and segment.start == 0:
                    met, updated = set(), False
                graph = self.program.graph_of(segment.stage, self.costs.graph)
                fresh = {o.target for o in graph.operators[segment.start : segment.stop]} - met
                more[i.name] = sum(self.firsts.get(target, 0.0) for target in sorted(fresh))
                met |= fresh
        return more

    def _woken(self, role: Role, lane: Lane) -> dict[str, Seconds]:
        """What acts of a lane that move nothing take more, as its thread wakes up for them."""
        body = role.on(lane.name)
        if (lane.name == role.leading and self.computing[role.name]) or all(isinstance(i.act, Load) for i in body):
            return {}  # the thread that computes, which receives and loads as well
        price = self.costs.waking if lane.policy is Policy.ORDER else self.costs.choosing
        own, before, found = {i.name for i in body}, frozenset[After](), dict[str, Seconds]()
        for i in body:
            causes = frozenset(after for after in i.after if after.name not in own)
            sums = any(isinstance(role.on_name[after.name].act, Collective) for after in causes)
            moves = isinstance(i.act, Collective | Send | Receive)
            if causes and not moves and not sums and causes != before:
                found[i.name] = price
            before = causes or before
        return found

    def _of_role(self, role: Role) -> list[Demand]:
        found, post, more = dict[str, Demand](), self.post(role), self._met(role)
        for lane in role.lanes:
            more |= self._woken(role, lane)
        serves = self.costs.again is not None and not self.computing[role.name]
        for lane in role.lanes:
            body, short, bucket, updated = role.on(lane.name), False, "", False
            names = {i.name for i in body}
            for i in body:
                moves, mine = isinstance(i.act, Collective | Send | Receive), getattr(i.act, "bucket", "")
                waits = moves or any(after.name not in names for after in i.after)
                behind = not moves if serves else not waits and (short or mine == bucket != "")
                behind = behind and (serves or updated or not isinstance(i.act, Update))
                found[i.name] = self.of(i.act, behind=behind, wakes=waits, post=post)
                bucket = "" if moves or lane.policy is not Policy.ORDER else mine
                updated = isinstance(i.act, Update)
                short = lane.policy is Policy.ORDER and not moves and found[i.name].core < SHORT
        found |= {name: replace(found[name], core=found[name].core + seconds) for name, seconds in more.items()}
        return [found[i.name] for i in role.instructions]
