"""The workers that a request can do without, and which of them died, are away, or have been started again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Message = Mapping[str, Any]


@dataclass
class Spares:
    """`ranks` may die. Each is started again at most `times` times, and then sent the messages `again`: to open, and
    the request. One rank of each of `chains` has to stay, since it takes over the parts of the others. `absent`
    ranks are not there now; of these, the `away` ones will not come back. Private to one request."""

    ranks: Collection[int] = ()
    again: Sequence[Message] = ()
    times: int = 0
    chains: Collection[Collection[int]] = ()
    died: dict[int, int] = field(default_factory=dict)
    away: set[int] = field(default_factory=set)
    absent: set[int] = field(default_factory=set)

    def can_do_without(self, rank: int, begun: bool) -> bool:
        """Whether the others can go on without a worker; only once it has `begun` to train, since all ranks meet
        before."""
        last = any(rank in chain and self.died.keys() >= {*chain} - {rank} for chain in self.chains)
        return rank in self.ranks and (begun or rank in self.died) and not last

    def successors(self, rank: int) -> bool:
        """Whether others can take over a worker's part."""
        return any(rank in chain for chain in self.chains)

    def dies(self, rank: int) -> Sequence[Message]:
        """A worker has died. Returns the messages to send it after starting it again; none if it is not started
        again."""
        self.died[rank] = self.died.get(rank, 0) + 1
        others = sorted(self.absent - {rank})
        self.absent.add(rank)
        if self.again and rank not in self.away and self.died[rank] <= self.times:
            return [{**message, "absent": others} for message in self.again]
        self.away.add(rank)
        return ()

    def gives_up(self, rank: int) -> bool:
        """Whether a worker that was started again and reports an error is abandoned."""
        if rank in self.died and rank not in self.away:
            self.away.add(rank)
            return True
        return False
