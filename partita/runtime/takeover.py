"""A server that is lost, and who of its chain plays its part from then on, in one process (FT-02).

A part is a role of the Program and where it stands: what of each instruction is done. What the lost server had applied
without its neighbour knowing is forgotten; nobody was answered for it, so whoever sent it still has it, and is asked
again. The Program stays as it is: the neighbour's device plays two parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

from partita.program.instruction import Combine, Receive, Send, Space, Update
from partita.program.program import Program
from partita.runtime.inprocess import Hall
from partita.runtime.rank import Rank


def chain_of(program: Program, rank: int) -> tuple[int, ...]:
    """The servers that have the same buckets as a server, in the order in which they copy."""
    mine = {i.act.bucket for i in program.role_of[rank].instructions if isinstance(i.act, Update)}
    return tuple(
        sorted(
            r for role in program.roles if role.keeps == "server" for r in role.ranks
            if mine == {i.act.bucket for i in role.instructions if isinstance(i.act, Update)}
        )
    )  # fmt: skip


def heir_of(program: Program, ranks: Mapping[int, Rank], lost: int) -> int:
    """Who takes over from a lost server: the next of its chain that is there, or else the last one before it; -1 if
    nobody has what it had."""
    chain = chain_of(program, lost)
    there = [rank for rank in chain if rank in ranks]
    return next((rank for rank in there if rank > lost), there[-1] if there else -1)


def at_rest(rank: Rank, hall: Hall, lost: int) -> bool:
    """Whether a server has applied what it has received, and what it has sent to the lost one."""
    for i in rank.role.instructions:
        act = i.act
        if not isinstance(act, Send | Receive) or act.space is not Space.GRADIENT:
            continue
        if isinstance(act, Receive) or lost in act.to:
            ends = (*act.source, rank.rank) if isinstance(act, Receive) else (rank.rank, *act.to)
            if hall.met[act.key, ends] > _applied(rank, act.bucket):
                return False
    return True


def take_over(fresh: Rank, heir: Rank, ranks: Mapping[int, Rank], hall: Hall) -> None:
    """Let `fresh`, which has the lost rank's role, stand where the heir's state has brought it, with a copy of that.
    The heir must be `at_rest`, the hall rid of the lost one, and whoever is ahead of it in the chain there."""
    applied = {i.act.bucket: _applied(heir, i.act.bucket) for i in fresh.role.instructions if isinstance(i.act, Update)}
    for bucket in applied:
        fresh.state.parameter[bucket].copy_(heir.state.parameter[bucket])
        fresh.state.optimizer[bucket].load_state_dict(deepcopy(heir.state.optimizer[bucket].state_dict()))
        if bucket in fresh.state.schedule:
            fresh.state.schedule[bucket].load_state_dict(heir.state.schedule[bucket].state_dict())
        fresh.state.ledger.version[bucket] = applied[bucket]
    for i in fresh.role.instructions:
        if isinstance(i.act, Update | Combine):
            fresh.board.done[i.name] = applied[i.act.bucket]
        elif isinstance(i.act, Send):
            ends = fresh.rank, *i.act.to
            most = applied.get(i.act.bucket, hall.met[i.act.key, ends])  # what nobody else has is sent once more
            fresh.board.done[i.name] = hall.met[i.act.key, ends] = min(hall.met[i.act.key, ends], most)
        elif isinstance(i.act, Receive):
            fresh.board.done[i.name] = hall.met[i.act.key, (*i.act.source, fresh.rank)]
            if i.act.bucket in applied:
                _asked_again(fresh, i.act, ranks[i.act.source[0]])


def _asked_again(fresh: Rank, act: Receive, source: Rank) -> None:
    """What a worker or a server sent last, which it has until it is answered."""
    sent = source.state.gradient[act.bucket][0]
    inbox = act.space is Space.INBOX
    (fresh.state.inbox_of(act.bucket, source.rank) if inbox else fresh.state.gradient[act.bucket][0]).copy_(sent)


def _applied(rank: Rank, bucket: str) -> int:
    """How many rounds of a bucket a server has applied."""
    name = next(i.name for i in rank.role.instructions if isinstance(i.act, Update) and i.act.bucket == bucket)
    return rank.board.done.get(name, 0)


def void_of(hall: Hall, lost: int) -> None:
    """What the lost rank brought to messages that are not over is not there any more; what others brought is."""
    for place, meeting in tuple(hall.meetings.items()):
        meeting.brought.pop(lost, None)
        if not meeting.brought:
            del hall.meetings[place]
