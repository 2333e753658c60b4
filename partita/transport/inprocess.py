"""All ranks in one process: tensors are passed by reference and combined in the order of ranks.

Nothing here depends on timing, so a Program gives the same bits in whatever order its lanes advance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import torch

from partita.errors import ProgramError
from partita.program.space import Kind
from partita.transport.transport import Pending
from partita.units import Seconds

Own = dict[int, slice]


@dataclass
class Exchange:
    """One collective or message of the `members`: the tensor that each has brought; `settle` runs once, when all
    have."""

    members: tuple[int, ...]
    settle: Callable[[dict[int, torch.Tensor]], None]
    brought: dict[int, torch.Tensor] = field(default_factory=dict)
    settled: bool = False

    def bring(self, rank: int, tensor: torch.Tensor) -> None:
        """Add the tensor of a rank; the last one to come settles the exchange. Raises ProgramError for a rank
        that has come before."""
        if rank in self.brought:
            raise ProgramError(f"rank {rank} came twice to the same message; the program reuses a key")
        self.brought[rank] = tensor
        if len(self.brought) == len(self.members):
            self.settle(self.brought)
            self.settled = True

    def ready(self) -> bool:
        """Whether `block` would return at once."""
        return self.settled

    def block(self, timeout: Seconds) -> bool:
        """Wait until ready; False if `timeout` seconds passed before."""
        return self.settled


@dataclass
class Rendezvous:
    """The exchanges of the ranks of one process; `completed` counts the rounds of each that are over."""

    exchanges: dict[tuple[str, int, tuple[int, ...]], Exchange] = field(default_factory=dict)
    completed: Counter[tuple[str, tuple[int, ...]]] = field(default_factory=Counter)

    def leave(self, rank: int) -> None:
        """Remove a rank that is gone from all exchanges."""
        self.exchanges = {place: exchange for place, exchange in self.exchanges.items() if rank not in place[2]}

    def exchange(
        self, key: str, round: int, members: tuple[int, ...], settle: Callable[[dict[int, torch.Tensor]], None]
    ) -> Exchange:
        """The exchange of `members` under `key` in a round, made when the first of them asks for it."""
        place = (key, round, members)
        exchange = self.exchanges.setdefault(place, Exchange(members, settle))
        if len(exchange.brought) == len(members) - 1:
            del self.exchanges[place]
            self.completed[key, members] += 1
        return exchange


@dataclass(frozen=True)
class InProcess:
    """The Transport of one rank among those that share `rendezvous`."""

    rank: int
    rendezvous: Rendezvous

    def collective(
        self, kind: Kind, tensor: torch.Tensor, group: tuple[int, ...], lane: str, key: str, round: int,
        edges: tuple[int, ...] = (),
    ) -> Pending:  # fmt: skip
        """Start a collective; see Transport."""
        own = {rank: slice(*edges[k : k + 2]) for k, rank in enumerate(group)} if edges else {}
        exchange = self.rendezvous.exchange(key, round, group, partial(SETTLE[kind], own))
        exchange.bring(self.rank, tensor)
        return exchange

    def send(self, tensor: torch.Tensor, to: int, key: str, round: int) -> Pending:
        """Start sending; see Transport."""
        exchange = self.rendezvous.exchange(key, round, (self.rank, to), partial(_hand_over, self.rank, to))
        exchange.bring(self.rank, tensor)
        return exchange

    def receive(self, tensor: torch.Tensor, source: int, key: str, round: int) -> Pending:
        """Start receiving; see Transport."""
        exchange = self.rendezvous.exchange(key, round, (source, self.rank), partial(_hand_over, source, self.rank))
        exchange.bring(self.rank, tensor)
        return exchange


def _hand_over(source: int, target: int, brought: dict[int, torch.Tensor]) -> None:
    brought[target].copy_(brought[source])


def _total(brought: dict[int, torch.Tensor]) -> torch.Tensor:
    first, *others = [brought[rank] for rank in sorted(brought)]
    total = first.clone()
    for other in others:
        total += other
    return total


def _all_reduce(own: Own, brought: dict[int, torch.Tensor]) -> None:
    total = _total(brought)
    for tensor in brought.values():
        tensor.copy_(total)


def _reduce_scatter(own: Own, brought: dict[int, torch.Tensor]) -> None:
    """What a rank does not own is nothing that anybody may read."""
    total = _total(brought)
    for rank, tensor in brought.items():
        if tensor.is_floating_point():
            tensor.fill_(float("nan"))
        tensor[own[rank]] = total[own[rank]]


def _all_gather(own: Own, brought: dict[int, torch.Tensor]) -> None:
    for rank, tensor in brought.items():
        for other, place in own.items():
            if other != rank:
                tensor[place] = brought[other][place]


def _broadcast(own: Own, brought: dict[int, torch.Tensor]) -> None:
    first, *others = [brought[rank] for rank in sorted(brought)]
    for other in others:
        other.copy_(first)


SETTLE: Final[dict[Kind, Callable[[Own, dict[int, torch.Tensor]], None]]] = {
    Kind.ALL_REDUCE: _all_reduce,
    Kind.REDUCE_SCATTER: _reduce_scatter,
    Kind.ALL_GATHER: _all_gather,
    Kind.BROADCAST: _broadcast,
}
