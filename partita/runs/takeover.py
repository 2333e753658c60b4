"""How a server of a chain takes over the part of a lost one (FT-02).

A part is a role of the Program and its progress: the rounds done of each instruction. Updates that the lost server made
and its neighbour does not have are forgotten. Nobody was answered for them, so whoever sent the gradients still has
them and is asked again. The Program does not change: the neighbour's process plays two parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import NamedTuple

from partita.program.instruction import Combine, Receive, Send, Update
from partita.program.program import Role
from partita.program.space import Space
from partita.runtime.rank import Rank
from partita.runtime.rules import load_schedule, schedule_state
from partita.transport.channel import Channel


class Message(NamedTuple):
    """What comes under `key` from one part to another, round after round."""

    key: str
    ends: tuple[int, int]  # sender, receiver

    def other(self, part: int) -> int:
        """The part at the other end."""
        sender, receiver = self.ends
        return receiver if part == sender else sender


CompletedRounds = Mapping[Message, int]


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
            found = completed.get(message_of(fresh.rank, i.act), most)
            fresh.board.done[i.name] = most if summed else min(found, most)


def message_of(part: int, act: Send | Receive) -> Message:
    """What a server sends or receives by an act."""
    return Message(act.key, (part, act.to[0]) if isinstance(act, Send) else (act.source[0], part))


def messages_of(part: int, role: Role) -> dict[str, Message]:
    """Instruction -> what it sends or receives, of a part with this role."""
    return {i.name: message_of(part, i.act) for i in role.instructions if isinstance(i.act, Send | Receive)}


def progress(rank: Rank) -> dict[Message, int]:
    """The rounds that a rank has done of each of its messages."""
    return {message: rank.board.done[name] for name, message in messages_of(rank.rank, rank.role).items()}


def applied(rank: Rank) -> dict[str, int]:
    """Bucket -> rounds that a server has applied."""
    done = rank.board.done
    return {i.act.bucket: done.get(i.name, 0) for i in rank.role.instructions if isinstance(i.act, Update)}


def unneeded(rank: Rank) -> dict[Message, int]:
    """The rounds of each gradient that a server does not need any more."""
    rounds = applied(rank)
    gradients = [act for act in rank.role.acts(Receive) if act.bucket in rounds]
    return {message_of(rank.rank, act): rounds[act.bucket] for act in gradients}


def finished_over(channels: Mapping[int, Channel]) -> CompletedRounds:
    """The rounds of a part's messages that are over by the count of its own end of each channel, or else by the other
    end's. Channels count by key, whichever end sends."""
    found: dict[Message, int] = {}
    for channel in channels.values():
        for key, rounds in {**(channel.there or {}), **channel.crossed}.items():
            for ends in ((channel.mine, channel.other), (channel.other, channel.mine)):
                found[Message(key, ends)] = rounds
    return found


def _at_rest(rank: Rank, completed: CompletedRounds, rounds: Mapping[str, int]) -> bool:
    """Whether a server has applied all that has been summed, and all gradients that have come."""
    sums = [(i.name, i.act.bucket) for i in rank.role.instructions if isinstance(i.act, Combine)]
    gradients = [act for act in rank.role.acts(Receive) if act.space is Space.GRADIENT]
    return all(rank.board.done.get(name, 0) <= rounds[bucket] for name, bucket in sums) and all(
        completed.get(message_of(rank.rank, act), 0) <= rounds[act.bucket] for act in gradients
    )


def _about(act: Send | Receive) -> str:
    """The bucket that a message is about; also for a word without content."""
    return act.key.rpartition(".")[0]
