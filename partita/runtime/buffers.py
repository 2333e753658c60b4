"""What a step makes of buffers. Those that are deferred are gathered from all microbatches of a minibatch, and change
once: statistics of a deferred batch normalisation, and what follows from no sample, of which the last is as all are.

The running statistics after a microbatch give its own mean and variance. Those of all samples together follow, with N
the number of values of a channel and the variance unbiased as in torch:

    mean = sum n_k mean_k / N        variance = (sum (n_k - 1) variance_k + sum n_k (mean_k - mean)^2) / (N - 1)
"""

from __future__ import annotations

import torch

from partita.graph.graph import Graph
from partita.graph.statistics import Statistic, statistics_of
from partita.program.instruction import Settle
from partita.program.program import Segment
from partita.runtime.rank import Rank
from partita.runtime.segment import Environment, key


def change(rank: Rank, graph: Graph, environment: Environment, segment: Segment) -> None:
    """Write what a segment made of buffers into them, all of one dtype by one call, or gather it if they are
    deferred."""
    written: dict[torch.dtype, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for buffer, ref in graph.mutations:
        if key(ref) in environment and segment.start <= graph.index[ref.name] < segment.stop:
            new = environment[key(ref)]
            if buffer in rank.program.deferred:
                gather(rank, buffer, new, segment)
            else:
                old = rank.state.leaves[buffer]
                buffers, values = written.setdefault(old.dtype, ([], []))
                buffers.append(old)
                values.append(new)
            if graph.last_reader.get(ref, 0) < segment.stop:
                del environment[key(ref)]
    for buffers, values in written.values():
        torch._foreach_copy_(buffers, values)


def gather(rank: Rank, buffer: str, new: torch.Tensor, segment: Segment) -> None:
    """Keep what a microbatch would make of a deferred buffer."""
    rank.gathered.setdefault(buffer, []).append((segment.batch, new.clone()))


def settle(rank: Rank, act: Settle, name: str, round: int) -> None:
    """Update the running statistics with what was gathered since the last time; counters, which may be on another
    stage, count once, and what follows from no sample moves once."""
    graph = rank.graph_of(act.stage)
    for statistic in (one for one in statistics_of(graph) if one.mean in rank.program.deferred):
        means, variances = rank.gathered.pop(statistic.mean), rank.gathered.pop(statistic.variance)
        counts = [statistic.samples(graph, batch) for batch, _ in means]
        _enter(rank, statistic, counts, [new for _, new in means], [new for _, new in variances])
    for buffer, _ in graph.mutations:
        for _, new in rank.gathered.pop(buffer, [])[-1:]:
            rank.state.leaves[buffer].copy_(new)


def _enter(
    rank: Rank, statistic: Statistic, counts: list[int], means: list[torch.Tensor], variances: list[torch.Tensor]
) -> None:
    moved = statistic.momentum
    mean, variance = (rank.state.leaves[name] for name in (statistic.mean, statistic.variance))
    n = torch.tensor(counts, dtype=torch.float64, device=mean.device)[:, None]
    own = torch.stack([(new.double() - (1 - moved) * mean.double()) / moved for new in means])
    spread = torch.stack([(new.double() - (1 - moved) * variance.double()) / moved for new in variances])
    whole = (n * own).sum(0) / n.sum()
    squares = ((n - 1) * spread).sum(0) + (n * (own - whole) ** 2).sum(0)
    mean.mul_(1 - moved).add_((moved * whole).to(mean.dtype))
    variance.mul_(1 - moved).add_((moved * squares / (n.sum() - 1)).to(variance.dtype))
