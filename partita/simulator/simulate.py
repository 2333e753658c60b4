"""Predict: a Program and Costs give a Timeline."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

import numpy as np

from partita.arrays import Ints, Reals
from partita.cost.costs import Costs
from partita.cost.launching import sides
from partita.cost.memory import Changes, changes_of, loaded_late
from partita.cost.memory_curve import MOMENTS
from partita.cost.prices import Prices
from partita.cost.scratch import Processor
from partita.program.breakdown import breakdown
from partita.program.ledger import step_of
from partita.program.program import Program, Role
from partita.program.shares import lockstep, shares_of
from partita.program.spans import Spans, Times
from partita.program.timeline import Timeline
from partita.simulator.clock import advance
from partita.simulator.cooling import cooled
from partita.simulator.expand import Layout, expand
from partita.simulator.merges import merges_of
from partita.simulator.moves import moves_of
from partita.simulator.overlap import extra_seconds
from partita.simulator.ports import Ports, processor
from partita.simulator.symmetry import Symmetry, symmetry_of, without_idle_ports
from partita.simulator.transfers import Transfers, sent_by, traffic_of, transfers_of
from partita.simulator.unevenness import uneven, unevenly_shared
from partita.units import Bytes, Seconds

WARMUP = 3  # rounds that fill a pipeline
FILLINGS = 8  # of a quota's bucket: what was in it at the start is spent by then
MOST_WARMUP = 100  # rounds
TURNS = 2  # after the first, in which what moves learns what computes beside it
LAST = 2  # rounds whose spans are told
AFTER = 1  # rounds at the end that do not count: what the next step loads and sends is done beside the last that does
ASYNC_ROUNDS = 28  # rounds where workers go at their own pace, and a ledger is to show how stale they are


@dataclass(frozen=True, slots=True)
class LiveBytes:
    """The memory of a rank: bytes at the `peak`, bytes `over` time as (seconds, bytes), and the `parts` of each of
    these by purpose."""

    peak: Bytes
    over: tuple[tuple[Seconds, Bytes], ...]
    parts: tuple[tuple[Bytes, ...], ...]


@dataclass(eq=False)
class Setting:
    """What the clock needs to know of a program on a cluster, whatever its computing takes.

    `transfers` is what ranks do together; `binding_transfers` is the same without ports that can hold nobody back;
    `symmetry` tells which ranks are alike; `changes` (filled when first needed) has what comes and goes in each role's
    memory.
    """

    program: Program
    ports: Ports
    transfers: Transfers
    binding_transfers: Transfers
    symmetry: Symmetry
    changes: dict[str, Changes] = field(default_factory=dict)

    def clocked(self, costs: Costs, rounds: int, warmup: int = WARMUP) -> Clocked:
        """`rounds` rounds in the steady state, after `warmup` rounds that fill it, and as many as are in flight."""
        transfers, warmup = self.binding_transfers, warmup + self.program.drain
        prices = Prices(costs, self.program)
        layout, activities = expand(self.program, prices, self.ports, transfers, self.symmetry, warmup + rounds + AFTER)
        if costs.unevenness and not lockstep(self.program):
            activities = activities.longer(np.zeros(activities.size), uneven(layout, costs, activities.least))
            activities = unevenly_shared(activities, self.ports.wires)
        start, end = advance(activities, self.ports.resources)
        extra, more, moves = np.zeros(len(start)), np.zeros(len(start)), moves_of(self.program, costs)
        for _ in range(TURNS if moves else 0):
            extra, more = extra_seconds(layout, costs, moves, start, end, extra)
            start, end = advance(activities.longer(extra, more), self.ports.resources)
        if (cold := cooled(layout, prices, start, end)).any():  # now that it is known how long each waits
            more = more + cold
            start, end = advance(activities.longer(extra, more), self.ports.resources)
        return Clocked(self, prices, layout, start, end, more, warmup)

    def steady(self, costs: Costs, rounds: int) -> Clocked:
        """`rounds` rounds in the steady state, after so many others that quotas, full at the start, have no more than a
        step leaves in them."""
        run = self.clocked(costs, rounds)
        if not run.pace * WARMUP < FILLINGS * self.ports.refill:  # nor where too few rounds end to tell (NaN)
            return run
        enough = FILLINGS * self.ports.refill / max(run.pace, 1e-9)
        return self.clocked(costs, rounds, math.ceil(min(enough, MOST_WARMUP)))


@dataclass(frozen=True, eq=False)
class Clocked:
    """What the clock says of a program at these prices: the `start` and `end` of each activity of a layout, in seconds,
    and the core-seconds that it takes `more` than by itself, the first `warmup` rounds before the steady state. All
    else is worked out when it is asked for."""

    setting: Setting
    prices: Prices
    layout: Layout
    start: Reals
    end: Reals
    more: Reals
    warmup: int

    @cached_property
    def seconds(self) -> Seconds:
        """Seconds of a step in the steady state: in lockstep no fewer than each quota needs to give what a step takes.
        What was in it at the start may outlast the rounds that are clocked, where steps are short."""
        rows = map(processor, self.setting.ports.cluster.devices)
        quotas = [(core, rate) for core, (rate, _, burst) in zip(self.cores, rows, strict=False) if burst]
        return max([self.pace, *(core / rate for core, rate in quotas if lockstep(self.prices.program))])

    @cached_property
    def pace(self) -> Seconds:
        """Seconds of a step, by when the rounds that are clocked end. In lockstep those of the slowest rank: the first
        ranks of a pipeline, to which nothing comes back, run ahead of the others."""
        program, rounds, warmup = self.setting.program, self.layout.rounds - AFTER, self.warmup
        ends = {role.name: _round_ends(self.layout, role, self.end)[:rounds] for role in program.roles}
        if lockstep(program):
            took = np.concatenate([of_role[-1] - of_role[warmup - 1] for of_role in ends.values()])
            return float(took.max()) / ((rounds - warmup) * max(program.steps, 1))
        shares = {rank: share for role in program.roles for rank, share in shares_of(program, role).items()}
        lines = {rank: ends[program.role_of[rank].name][:, program.role_of[rank].place[rank]] for rank in shares}
        return step_of([lines[rank].tolist() for rank in shares], list(shares.values()), warmup)

    def last(self, role: Role) -> Ints:
        """The activities of a role in the last rounds that count, shape [rounds, instructions, kinds]."""
        return self.layout.at(role)[-LAST - AFTER : -AFTER]

    def times(self, role: Role) -> Times:
        """The last rounds of a role."""
        layout, at = self.layout, self.last(role)
        return Times(role, layout.rounds - AFTER - LAST, self.start[at], self.end[at], layout.kind(role))

    @property
    def cores(self) -> tuple[Seconds, ...]:
        """Core-seconds that each rank's instructions take in one step, on its own device."""
        program, costs = self.prices.program, self.prices.costs
        spent = [0.0] * program.size
        for role in program.roles:
            core, own = np.array([demand.core for demand in self.prices.of_role(role)]), np.array(role.computing)
            kinds = self.layout.kinds[role.name].tolist()
            computed, moved = self.prices.seconds(role, kinds)[own].sum(axis=0), float(core[~own].sum())
            more = self.more[self.last(role)].mean(axis=0).sum(axis=0)[self.layout.kind(role)]
            alone = computed[self.layout.kind(role)]
            for rank, taken, beyond in zip(role.ranks, alone.tolist(), more.tolist(), strict=True):
                spent[rank] = (taken + moved / costs.handling(rank) + beyond) / max(program.steps, 1)
        return tuple(spent)

    def timeline(self) -> Timeline:
        """All that there is to tell, with the spans of the last rounds."""
        here, costs = self.setting, self.prices.costs
        program, times = here.program, [self.times(role) for role in here.program.roles]
        spans, worker = Spans(times), next((r for r in program.roles if r.keeps == "model"), program.roles[0])
        here.changes = {each.role.name: _changes(program, costs, each) for each in times}
        of_role = {each.role.name: _live(here.changes[each.role.name], each, costs) for each in times}
        live = [of_role[program.role_of[rank].name] for rank in range(program.size)]
        return Timeline(
            program.name, "simulated", self.seconds, program.batch, spans,
            memory=tuple(each.peak for each in live), wire_sent=sent_by(program, here.transfers),
            memory_over_time=tuple(each.over for each in live), memory_parts=tuple(each.parts for each in live),
            cores=self.cores, traffic=traffic_of(program, here.transfers),
            breakdown=breakdown(program, spans.of(worker.ranks[0]), self.seconds, LAST),
            ledger=merges_of(program, self.layout, self.start), dtype=program.dtype,
        )  # fmt: skip


def setting_of(program: Program, costs: Costs) -> Setting:
    """The setting for these costs; it also holds for other costs that price messages alike."""
    ports = Ports(costs.cluster, costs.wiring, costs.hosts)
    transfers = transfers_of(program, costs, ports)
    binding = without_idle_ports(transfers, ports)
    return Setting(program, ports, transfers, binding, symmetry_of(program, costs, ports, binding))


def clocked(program: Program, costs: Costs, *, rounds: int = 4, setting: Setting | None = None) -> Clocked:
    """The steady state of a program: `rounds` rounds after those that fill it, on the side of the costs that takes
    longer.

    Deterministic. Raises CostError for an operator without a cost.
    """
    here, rounds = setting or setting_of(program, costs), rounds if lockstep(program) else max(rounds, ASYNC_ROUNDS)
    return max((here.steady(each, rounds) for each in sides(program, costs)), key=attrgetter("seconds"))


def simulate(program: Program, costs: Costs, *, rounds: int = 4, setting: Setting | None = None) -> Timeline:
    """The Timeline of `clocked`."""
    return clocked(program, costs, rounds=rounds, setting=setting).timeline()


def step_seconds(program: Program, costs: Costs) -> Seconds:
    """Seconds of a step, the same as `simulate` finds, without the rest of the Timeline."""
    return clocked(program, costs).seconds


def peaks(setting: Setting, costs: Sequence[Costs], roles: Collection[str]) -> list[dict[str, Bytes]]:
    """Peak bytes of the first rank of each of these roles, under each of the costs; the setting must have been
    simulated before."""
    program, found = setting.program, []
    for each in costs:
        run = setting.clocked(each, 2 if lockstep(program) else ASYNC_ROUNDS)
        times = [run.times(role) for role in program.roles if role.name in roles]
        found.append({one.role.name: setting.changes[one.role.name].at(*_of_first(one, each)).peak for one in times})
    return found


def _round_ends(layout: Layout, role: Role, end: Reals) -> Reals:
    """When each round's last instruction of the role's leading lane ends, shape [rounds, ranks]."""
    last = role.instructions.index(role.on(role.leading)[-1])
    found: Reals = end[layout.at(role)[:, last]][:, layout.kind(role)]
    return found


def _live(changes: Changes, times: Times, costs: Costs) -> LiveBytes:
    """Those of each rank of a role, which are those of its first."""
    curve = changes.at(*_of_first(times, costs)).thinned(MOMENTS)
    over = tuple(zip(curve.seconds.tolist(), curve.totals.tolist(), strict=True))
    return LiveBytes(curve.peak, over, tuple(map(tuple, curve.parts.tolist())))


def _changes(program: Program, costs: Costs, times: Times) -> Changes:
    role = times.role
    on = Processor.CARD if costs.cluster.devices[role.ranks[0]].backend == "cuda" else costs.processor
    return changes_of(program, costs.graph, role, *_of_first(times, costs), on=on, spaces=costs.workspaces)


def _of_first(times: Times, costs: Costs) -> tuple[Reals, Reals]:
    """When the instructions of a role's first rank start and end, shape [rounds, instructions]."""
    start, end = times.start[:, :, times.kind[0]], times.end[:, :, times.kind[0]]
    return loaded_late(times.role, start, end) if costs.at_hand else (start, end)
