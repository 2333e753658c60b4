"""Predict: a Program and Costs give a Timeline."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from partita.cost.costs import Costs, ring_bytes
from partita.cost.memory import peak_memory
from partita.program.breakdown import breakdown
from partita.program.instruction import Collective, Send
from partita.program.program import Program, Role
from partita.program.timeline import Span, Timeline
from partita.simulator.clock import advance
from partita.simulator.expand import Layout, expand
from partita.simulator.ports import Ports
from partita.units import Bytes, Seconds

WARM = 4


def simulate(program: Program, costs: Costs, *, rounds: int = 4, keep: int = 2) -> Timeline:
    """The steady state of a program: `rounds` rounds after 4 that fill it; spans of the last `keep` rounds.

    Deterministic. Raises CostError for an operator without a cost.
    """
    ports = Ports(costs.cluster, costs.wiring.efficiency, costs.hosts)
    layout, activities, alias = expand(program, costs, ports, rounds + WARM)
    start, end = advance(activities, ports.resources)
    start, end = start[alias], end[alias]
    ends = np.array([_round_ends(layout, role, end) for role in program.roles])
    seconds = float(np.mean(ends[:, -1] - ends[:, WARM - 1])) / (rounds * program.steps)
    spans = _spans(layout, start, end, keep)
    return Timeline(
        program.name, "simulated", seconds, program.batch, spans,
        memory=tuple(peak_memory(program, costs.graph, rank) for rank in range(program.size)),
        wire_sent=wire_sent(program), cores=core_seconds(program, costs),
        breakdown=breakdown(program, spans, seconds, keep), traffic=traffic(program),
    )  # fmt: skip


def _round_ends(layout: Layout, role: Role, end: NDArray[np.float64]) -> NDArray[np.float64]:
    """When each round's last instruction of the role's leading lane ends, averaged over its ranks."""
    lane = "compute" if any(lane.name == "compute" for lane in role.lanes) else "serve"
    ends: NDArray[np.float64] = end[layout.at(role, role.on(lane)[-1].name)].mean(axis=1)
    return ends


def _spans(layout: Layout, start: NDArray[np.float64], end: NDArray[np.float64], keep: int) -> tuple[Span, ...]:
    found = []
    for role in layout.program.roles:
        if len(role.ranks) * len(role.instructions) > 100_000:
            continue
        for i in role.instructions:
            mine = layout.at(role, i.name)
            for t in range(layout.rounds - keep, layout.rounds):
                for place, rank in enumerate(role.ranks[:64]):
                    at = mine[t, place]
                    found.append(Span(rank, i.lane, i.name, type(i.act).__name__, t, float(start[at]), float(end[at])))
    return tuple(sorted(found, key=lambda span: (span.rank, span.lane, span.start)))


def core_seconds(program: Program, costs: Costs) -> tuple[Seconds, ...]:
    """Core-seconds that each rank's instructions take in one step, on its own device."""
    spent = [0.0] * program.size
    for role, i in program.instructions():
        for rank in role.ranks:
            among = len(next(g for g in i.act.groups if rank in g)) if isinstance(i.act, Collective) else 2
            spent[rank] += costs.demand(program, i.act, among).core / costs.cluster.devices[rank].speed
    return tuple(total / program.steps for total in spent)


def wire_sent(program: Program) -> tuple[Bytes, ...]:
    """Payload bytes that each rank sends in one step."""
    sent = [0] * program.size
    for (source, _), size in _messages(program).items():
        sent[source] += size
    return tuple(total // program.steps for total in sent)


def traffic(program: Program) -> tuple[tuple[int, int, Bytes], ...]:
    """The same, by receiver too: (source, target, bytes) of every pair that speaks. A collective is a ring."""
    return tuple((source, to, size // program.steps) for (source, to), size in sorted(_messages(program).items()))


def _messages(program: Program) -> dict[tuple[int, int], Bytes]:
    """Payload bytes from rank to rank in one round."""
    sent: dict[tuple[int, int], Bytes] = {}
    for role, i in program.instructions():
        for rank in role.ranks:
            if isinstance(i.act, Send):
                to, size = role.mine(i.act.to, rank), program.bucket[i.act.bucket].size
            elif isinstance(i.act, Collective):
                group = next(g for g in i.act.groups if rank in g)
                b, place = program.bucket[i.act.bucket], group.index(rank)
                to = group[(place + 1) % len(group)]
                size = ring_bytes(b.elements, b.size // b.elements, len(group))[place]
            else:
                continue
            if size:
                sent[rank, to] = sent.get((rank, to), 0) + size
    return sent
