"""A worker that was started again joins a running run: it enters at the round that all agree on (`admission`).

rank 2   is back: `enter`                all answers: 9   links anew    `adopt` -------- round 9, from their weights
rank 3   round 8 .. sees it, `_admit`:   all answers: 9   links anew    `_give` -------- round 9, with rank 2 again
                    held, answers 8                       `_let_in`     after round 8
rank 4   round 9 .. held, answers 9      all answers: 9   links anew    ---------------- round 9, with rank 2 again
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Final

from partita.errors import RunError
from partita.program.absence import answered, met_by, shared
from partita.program.instruction import Receive
from partita.program.program import Program
from partita.program.space import Space
from partita.runs.admission import (
    REJOIN_TIMEOUT,
    Admission,
    Return,
    absent,
    agreed,
    answer,
    come_back,
    last_return,
    returns,
)
from partita.runs.presence import changes, leave
from partita.runs.session import Session
from partita.runtime.leg import Leg
from partita.runtime.membership import begin_without, finished_before, mark_back, mark_gone
from partita.runtime.rank import Rank
from partita.transport.store import line_to_store, prefixed
from partita.transport.transport import PeerGone
from partita.units import Seconds

WATCH_INTERVAL: Final[Seconds] = 0.2  # between looks whether a peer is back


@dataclass
class Rejoin:
    """One rank's part, in the `number`-th run of its session. While entered, a thread watches for peers that are
    back. The run can do without the ranks in `spare`, of which some are `away`. If this rank is `back` itself, it has
    to do with no return before it of those that are not away: `known` are the returns of each rank seen so far."""

    session: Session
    spare: frozenset[int]
    legs: Sequence[Leg]
    number: int
    rank: Rank | None = None
    leg: int = 0
    away: set[int] = field(default_factory=set)
    gone: dict[int, int] = field(default_factory=dict)
    back: Return | None = None
    known: dict[int, int] = field(default_factory=dict)
    done: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.store, me = self._client(), self.session.rank
        may_leave = {peer for peer in self.spare if me in self.met(peer)}
        self.peers = sorted(may_leave.union(self.met(me) if me in self.spare else ()))

    def met(self, peer: int) -> list[int]:
        """The ranks that exchange messages with a rank in any leg of the run."""
        return sorted({rank for leg in self.legs for rank in met_by(leg.program, peer)})

    def __enter__(self) -> None:
        for peer in self.peers:
            if peer not in self.away:
                self._link(self.store, peer, self.back)
        threading.Thread(target=self._watch, name="rejoin", daemon=True).start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.rank = None
        self.done.set()
        leave(self.store, self.session.rank)

    def begins(self, rank: Rank, leg: int) -> None:
        """A leg of the run begins."""
        rank.spare, rank.away, rank.gone = self.spare, self.away, self.gone
        begin_without(rank)
        self.rank, self.leg = rank, leg

    def enter(self) -> Admission:
        """Where this rank, which is back, enters. Raises RunError if the run is over."""
        me = self.session.rank
        self.known = {peer: last_return(self.store, peer).times for peer in self.spare - self.away}
        self.back = back = come_back(self.store, me, self.away)
        self.gone[me] = back.times
        entry = agreed(self.store, back, self.met(me))
        if entry is None:
            raise RunError(f"rank {me} is back, but the run is over", rank=me)
        return entry

    def adopt(self, rank: Rank, at: int) -> None:
        """Receive the current weights, and other tensors kept from round to round: from the answers of servers, or
        from the first of the other workers."""
        giver = self._giver(rank.program, rank.rank)
        if giver is None:
            for bucket in (act.bucket for act in rank.role.acts(Receive) if act.space is Space.ANCHOR):
                rank.state.parameter[bucket].copy_(rank.state.kept[Space.ANCHOR, bucket])
        else:
            self._take(rank, giver, at)

    def _take(self, rank: Rank, giver: int, at: int) -> None:
        """Receive what another worker gives."""
        me, patience = rank.rank, self.session.timeout
        for space, bucket in shared(rank.program, me, giver):
            tensor = rank.state.flat(space, bucket, 0)
            message = self.session.transport.receive(tensor, giver, f"{bucket}.{space}", at)
            if not message.block(patience):
                raise RunError(
                    f"rank {me} is back, and rank {giver} did not send {bucket} within {patience:g} s; "
                    "raise --timeout if a round takes as long",
                    rank=me,
                )

    def _give(self, rank: Rank, peer: int, at: int) -> None:
        """Send what a peer takes, once this rank has finished the rounds before."""
        rank.brake.lift(rank.step(at, 0))
        with rank.board.changed:
            over = partial(finished_before, rank, at)
            rank.board.changed.wait_for(lambda: rank.board.failure or over(), self.session.timeout)
            if not over():
                return  # who is back hears nothing, and says so
        for space, bucket in shared(rank.program, rank.rank, peer):
            message = self.session.transport.send(rank.state.flat(space, bucket, 0), peer, f"{bucket}.{space}", at)
            message.block(self.session.timeout)

    def _giver(self, program: Program, peer: int) -> int | None:
        """The rank that gives its weights to a rank that is back; None if answers of servers bring them."""
        if answered(program, peer):
            return None
        workers = [w for w in self.met(peer) if program.role_of[w].keeps == "model" and w not in self.away]
        return workers[0]

    def _link(self, store: Any, peer: int, back: Return | None) -> None:
        """Open the link to a peer, where no other one was made before: one of the two is `back`, or nobody yet."""
        a, b = sorted((self.session.rank, peer))
        patience = min(self.session.timeout, REJOIN_TIMEOUT) if back else self.session.timeout
        place = f"{back.rank}.{back.times}" if back else ""
        self.session.transport.link(peer, prefixed(store, f"link/{a}-{b}/{place}"), patience)

    def _watch(self) -> None:
        """Until the run is over: learn who is back, and let it in."""
        store = self._client()
        for _ in changes(partial(returns, store), self.done, WATCH_INTERVAL):
            for back in self._new_returns(store):
                threading.Thread(target=self._admit, args=(back,), daemon=True).start()

    def _new_returns(self, store: Any) -> list[Return]:
        """The returns since the last look of peers for which this rank was there."""
        last = [last_return(store, peer) for peer in self.spare.intersection(self.peers)]
        fresh = [back for back in last if back.times > self.known.get(back.rank, 0)]
        self.known |= {back.rank: back.times for back in fresh}
        return [back for back in fresh if self.session.rank not in absent(store, back)]

    def _admit(self, back: Return) -> None:
        """Stop before the next round, agree with all others on the one at which the peer enters, and go on with it."""
        with suppress(RuntimeError, PeerGone):  # it has gone again meanwhile
            store, rank = self._client(), self.rank
            if rank is None or not rank.program.steps:
                answer(store, back, self.session.rank, None)
                return
            begun = (rank.brake.hold() - rank.first_step) // rank.program.steps
            try:
                in_time = begun < self.legs[self.leg].rounds
                answer(store, back, rank.rank, Admission(self.leg, max(begun, 1)) if in_time else None)
                entry = agreed(store, back, self.met(back.rank))
                if entry is not None:
                    self._let_in(store, rank, back, entry.round)
            finally:
                rank.brake.resume()

    def _let_in(self, store: Any, rank: Rank, back: Return, at: int) -> None:
        """Link a peer that is back, which takes part from round `at` on, with this rank's weights if they are the ones
        to be given."""
        mark_gone(rank, back.rank, back.times - 1)
        self._link(store, back.rank, back)
        mark_back(rank, back.rank, at)
        if self._giver(rank.program, back.rank) == rank.rank:
            self._give(rank, back.rank, at)

    def _client(self) -> Any:
        return line_to_store(self.number, self.session.timeout)
