"""Which workers a request can do without, and who of them died, is away, or has been started again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Message = Mapping[str, Any]


@dataclass
class Spares:
    """`ranks` may die; each is started again `times` times, and then told the `again` messages: to open, and what it
    was asked. One of each of `chains` has to stay: it does what the others of it did. Those in `absent` are not there
    now, of which those `away` will not be. Private to one request."""

    ranks: Collection[int] = ()
    again: Sequence[Message] = ()
    times: int = 0
    chains: Collection[Collection[int]] = ()
    died: dict[int, int] = field(default_factory=dict)
    away: set[int] = field(default_factory=set)
    absent: set[int] = field(default_factory=set)

    def can_do_without(self, rank: int, begun: bool) -> bool:
        """Whether the others go on without a worker: once it has `begun` to train, before which all meet."""
        last = any(rank in chain and self.died.keys() >= {*chain} - {rank} for chain in self.chains)
        return rank in self.ranks and (begun or rank in self.died) and not last

    def successors(self, rank: int) -> bool:
        """Whether others do what a worker did."""
        return any(rank in chain for chain in self.chains)

    def dies(self, rank: int) -> Sequence[Message]:
        """A worker has died; what it is told when it is started again, nothing if it is not."""
        self.died[rank] = self.died.get(rank, 0) + 1
        others = sorted(self.absent - {rank})
        self.absent.add(rank)
        if self.again and self.died[rank] <= self.times:
            return [{**message, "absent": others} for message in self.again]
        self.away.add(rank)
        return ()

    def gives_up(self, rank: int) -> bool:
        """Whether a worker that was started again, and complains, is done without."""
        if rank in self.died and rank not in self.away:
            self.away.add(rank)
            return True
        return False


NOBODY: Final = Spares()
