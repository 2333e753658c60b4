"""Reports of workers during a run, put together: which rank is slow, and which rank's weights differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from partita.cluster.cluster import Cluster
from partita.errors import RunError
from partita.lab.stragglers import StragglerDetector
from partita.program.program import Program
from partita.program.timeline import Timeline
from partita.runs.divergence import divergence_of


@dataclass
class Monitor:
    """Of one run of `program`; mutable. `weights` has, for each step, the checksums that ranks have reported."""

    program: Program
    cluster: Cluster
    weights: dict[int, dict[int, Mapping[str, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stragglers = StragglerDetector(self.program, self.cluster)

    def hear(self, rank: int, event: Mapping[str, Any]) -> Iterator[str]:
        """Take in a report; yields sentences that are worth telling. Raises RunError where a rank's weights differ."""
        if "weights" in event:
            self._compare(rank, event["after"], event["weights"])
        if "pace" in event:
            yield from self.stragglers.hear(rank, event["pace"])

    def at_end(self, timeline: Timeline) -> Iterator[str]:
        """What the last rounds say."""
        yield from self.stragglers.at_end(timeline)

    def _compare(self, rank: int, step: int, sums: Mapping[str, int]) -> None:
        told = self.weights.setdefault(step, {})
        told[rank] = sums
        if len(told) < len([each for role in self.program.roles for each in role.ranks]):
            return
        self.weights = {later: sums for later, sums in self.weights.items() if later > step}
        divergence = divergence_of(self.program, step, [told[each] for each in range(self.program.size)])
        if divergence:
            raise RunError(divergence.sentence, rank=divergence.rank, step=step)
