"""How a server of a chain takes over the part of a lost one (FT-02).

A part is a role of the Program and its progress: the rounds done of each instruction. Updates that the lost server made
and its neighbour does not have are forgotten. Nobody was answered for them, so whoever sent the gradients still has
them and is asked again. The Program does not change: the neighbour's process plays two parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

from partita.program.instruction import Combine, Receive, Send, Update
from partita.program.space import Space
from partita.runtime.rank import Rank
from partita.runtime.rules import load_schedule, schedule_state

CompletedRounds = Mapping[tuple[str, tuple[int, int]], int]  # of each message, by its key and its ends


def copied(fresh: Rank, successor: Rank, completed: CompletedRounds) -> bool:
    """Copy the successor's state into `fresh`, which has the lost rank's role, and mark as many updates as done.
    False if the successor is not at rest: it has not applied all that it has received and summed."""
    with successor.board.changed:  # nothing ends, so that nothing that waits for it begins
        rounds = applied(successor)
        if not _at_rest(successor, completed, rounds):
            return False
        for bucket, made in rounds.items():
            fresh.state.parameter[bucket].copy_(successor.state.parameter[bucket])
            fresh.state.optimizer[bucket].load_state_dict(deepcopy(successor.state.optimizer[bucket].state_dict()))
            if bucket in fresh.state.schedule:
                load_schedule(fresh.state.schedule[bucket], schedule_state(successor.state.schedule[bucket]))
            fresh.state.ledger.version[bucket] = made
        steps = {i.name: rounds[i.act.bucket] for i in fresh.role.instructions if isinstance(i.act, Update | Combine)}
        fresh.board.done |= steps
        return True


def take_over(fresh: Rank, completed: CompletedRounds) -> None:
    """Set the progress of `fresh`, which has been `copied`, from its updates and from the `completed` rounds of
    messages. Gradients that it has not applied are to be sent again."""
    rounds = applied(fresh)
    for i in fresh.role.instructions:
        if isinstance(i.act, Send | Receive):
            most = rounds[_about(i.act)]
            summed = isinstance(i.act, Receive) and i.act.bucket in rounds
            found = completed.get((i.act.key, ends_of(fresh.rank, i.act)), most)
            fresh.board.done[i.name] = most if summed else min(found, most)


def ends_of(rank: int, act: Send | Receive) -> tuple[int, int]:
    """(sender, receiver) of one of a server's messages."""
    return (rank, act.to[0]) if isinstance(act, Send) else (act.source[0], rank)


def applied(rank: Rank) -> dict[str, int]:
    """Bucket -> rounds that a server has applied."""
    done = rank.board.done
    return {i.act.bucket: done.get(i.name, 0) for i in rank.role.instructions if isinstance(i.act, Update)}


def asked(rank: Rank) -> dict[tuple[str, tuple[int, int]], int]:
    """(message, (sender, receiver)) -> rounds of that gradient which a server does not need any more."""
    rounds, found = applied(rank), dict[tuple[str, tuple[int, int]], int]()
    for i in rank.role.instructions:
        if isinstance(i.act, Receive) and i.act.bucket in rounds:
            found[i.act.key, ends_of(rank.rank, i.act)] = rounds[i.act.bucket]
    return found


def _at_rest(rank: Rank, completed: CompletedRounds, rounds: Mapping[str, int]) -> bool:
    for i in rank.role.instructions:
        act = i.act
        if isinstance(act, Combine) and rank.board.done.get(i.name, 0) > rounds[act.bucket]:
            return False
        if not isinstance(act, Receive) or act.space is not Space.GRADIENT:
            continue
        if completed.get((act.key, ends_of(rank.rank, act)), 0) > rounds[act.bucket]:
            return False
    return True


def _about(act: Send | Receive) -> str:
    """The bucket that a message is about; also for a word without content."""
    return act.key.rpartition(".")[0]
