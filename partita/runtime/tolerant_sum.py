"""Sums over ranks some of which may go away: tried by the backend, and agreed on, or added up by the first rank.

rank 0          | tried | 1 <- all of them          it says yes: all take what the backend has summed
rank 1, 2, 3    | tried | 1 -> 0

rank 0          | tried   1 <- 1, 3; 2 is gone      it says no: all send it their parts, and get the sum of those that
rank 1, 3       | tried   1 -> 0, 0 -> 0            came, which counts 4/3 times: what is divided by 4 is their mean

The backend may have summed on one rank what it has not on another when a third one dies; nobody takes it before the
first rank, which no run goes on without, has heard of all that it is there. Once somebody has gone, it is not tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from partita.errors import RunError
from partita.program.instruction import Collective
from partita.runtime.membership import DroppableMessage, droppable
from partita.runtime.rank import Rank
from partita.runtime.waits import Posted
from partita.transport.transport import Pending, Steps
from partita.units import Seconds
from partita.wire.algorithms import by_messages


def tolerant_sum(
    rank: Rank, act: Collective, flat: torch.Tensor, group: tuple[int, ...], name: str, round: int
) -> Steps:
    """An all-reduce in place among a group of which all members but the first may go away. Afterwards `flat` is the sum
    of those that are there, scaled as if all were."""
    whole, tried = flat.clone(), None
    if not (group in rank.parted or rank.gone.keys() & set(group) or by_messages(act)):
        lane = rank.role.on_name[name].lane
        begun = rank.transport.collective(act.kind, whole, group, lane, name, round)
        assert isinstance(begun, Pending)
        tried = Posted(BackendSum(begun), rank.board)
    one = TolerantSum(rank, flat, group, name, round, tried)
    yield from one.first() if rank.rank == group[0] else one.other()
    if one.agreed:
        flat.copy_(whole)
    else:
        rank.parted.add(group)


@dataclass
class TolerantSum:
    """One rank's part in one sum. `agreed`: all take the result of the backend, which was `tried`."""

    rank: Rank
    flat: torch.Tensor
    group: tuple[int, ...]
    name: str
    round: int
    tried: Posted | None
    agreed: bool = False

    def other(self) -> Steps:
        """The verdict may come before the backend is done, which waits for who is gone."""
        first, verdict = self.group[0], _word(False)
        said = Posted(self._receive(verdict, first, "verdict"), self.rank.board)
        if self.tried:
            yield MessagesWait(self.rank, (self.tried, said))
        yield self._send(_word(self._worked()), first, "word")
        yield MessagesWait(self.rank, (said,))
        self.agreed = bool(verdict.item())
        if not self.agreed:
            yield self._send(self.flat, first, "part")
            yield self._receive(self.flat, first, "sum")

    def first(self) -> Steps:
        """Hears the others, decides, and adds up what comes where the backend has failed somewhere."""
        words = {peer: _word(False) for peer in self.group[1:] if self.rank.there(peer, self.round)}
        said = {peer: Posted(self._receive(word, peer, "word"), self.rank.board) for peer, word in words.items()}
        if self.tried and len(words) == len(self.group) - 1:
            yield MessagesWait(self.rank, tuple(said.values()), every=True)
            if all(word.item() for word in words.values()):
                yield MessagesWait(self.rank, (self.tried,))
                self.agreed = self._worked()
        verdict = _word(self.agreed)
        yield from [self._send(verdict, peer, "verdict") for peer in words]
        if not self.agreed:
            for word in said.values():
                yield MessagesWait(self.rank, (word,))
            yield from self._added_up(tuple(words))

    def _added_up(self, peers: tuple[int, ...]) -> Steps:
        """The parts that come, in the order of the ranks."""
        parts = {peer: torch.empty_like(self.flat) for peer in peers}
        coming = {peer: self._receive(part, peer, "part") for peer, part in parts.items()}
        yield from coming.values()
        here = [parts[peer] for peer, came in coming.items() if not _lost(came)]
        for part in here:
            self.flat.add_(part)
        self.flat.mul_(len(self.group) / (1 + len(here)))
        yield from [self._send(self.flat, peer, "sum") for peer in peers]

    def _send(self, tensor: torch.Tensor, to: int, what: str) -> Pending:
        key = f"{self.name}.{what}"
        return self._with(to, lambda: self.rank.transport.send(tensor, to, key, self.round))

    def _receive(self, tensor: torch.Tensor, source: int, what: str) -> Pending:
        key = f"{self.name}.{what}"
        return self._with(source, lambda: self.rank.transport.receive(tensor, source, key, self.round))

    def _with(self, peer: int, start: Callable[[], Pending]) -> Pending:
        return droppable(self.rank, peer, lambda: self.rank.there(peer, self.round), start)

    def _worked(self) -> bool:
        tried = self.tried.pending if self.tried and self.tried.arrived else None
        return isinstance(tried, BackendSum) and not tried.failed


@dataclass
class BackendSum:
    """A collective of the backend, which fails where one of its ranks is gone, or waits for it without end."""

    pending: Pending
    failed: bool = False

    def ready(self) -> bool:
        """Whether `block` would return at once."""
        return self.pending.ready()

    def block(self, timeout: Seconds) -> bool:
        """Wait until ready; False if `timeout` seconds passed before."""
        try:
            self.failed = not self.pending.block(timeout)
        except (RunError, RuntimeError):
            self.failed = True
        return True


@dataclass
class MessagesWait:
    """Waits for one of several messages, or for `every` one, unless somebody is gone."""

    rank: Rank
    posted: tuple[Posted, ...]
    every: bool = False

    def settled(self) -> bool:
        """Whether enough of the messages have arrived, or a peer is gone."""
        here = [one.arrived > 0 for one in self.posted]
        enough = all(here) or any(_lost(one.pending) for one in self.posted) if self.every else any(here)
        return self.rank.board.failure is not None or enough

    def ready(self) -> bool:
        """Whether `block` would return at once."""
        for one in self.posted:
            one.ask()
        return self.settled()

    def block(self, timeout: Seconds) -> bool:
        """Wait until ready; False if `timeout` seconds passed before."""
        for one in self.posted:
            one.watch()
        with self.rank.board.changed:
            return self.rank.board.changed.wait_for(self.settled, timeout)

    def __str__(self) -> str:
        return "the others to say whether they have a sum"


def _lost(pending: Pending) -> bool:
    return isinstance(pending, DroppableMessage) and pending.over()


def _word(yes: bool) -> torch.Tensor:
    return torch.tensor([int(yes)])
