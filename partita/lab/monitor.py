"""What workers say of themselves while they run, put together: who is slow, and whose weights are not the others'."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from partita.cluster.cluster import Cluster
from partita.errors import RunError
from partita.lab.stragglers import Paces
from partita.program.program import Program
from partita.program.timeline import Timeline
from partita.runtime.stray import stray_of


@dataclass
class Beats:
    """Of one run of `program`; mutable. `weights` has, after a step, the checksums that each rank has told of."""

    program: Program
    cluster: Cluster
    weights: dict[int, dict[int, Mapping[str, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.paces = Paces(self.program, self.cluster)

    def hear(self, rank: int, event: Mapping[str, Any]) -> Iterator[str]:
        """Take in an event; sentences that are worth telling. Raises RunError where a rank has gone astray."""
        if "weights" in event:
            self._compare(rank, event["after"], event["weights"])
        if "pace" in event:
            yield from self.paces.hear(rank, event["pace"])

    def at_end(self, timeline: Timeline) -> Iterator[str]:
        """What the last rounds say."""
        yield from self.paces.at_end(timeline)

    def _compare(self, rank: int, step: int, sums: Mapping[str, int]) -> None:
        told = self.weights.setdefault(step, {})
        told[rank] = sums
        if len(told) < len([each for role in self.program.roles for each in role.ranks]):
            return
        self.weights = {later: sums for later, sums in self.weights.items() if later > step}
        stray = stray_of(self.program, [told[each] for each in range(self.program.size)])
        if stray:
            raise RunError(f"{stray.sentence} at step {step}", rank=stray.rank, step=step)
