"""Pairs that average whenever one of them asks, while all go on at their own pace (AD-PSGD; Lian et al. 2018).

active   compute   T F B K U C X G | T F B ..     T: weights to compute on, from what is agreed on; C: what the step
         to 3      S--                            changed; X: the mean that came back; G: the change joins it
         from 3               R--
passive  serve     T . A V ... G . | T . A V      A: the mean with whoever asks, V: a copy for them, at once; T, G as
         compute     F B K U C     |   F B ..     above, between A and V never
         from 0        I--
         to 0                D--

Even ranks are active: they ask. Odd ones are passive: they are asked. Nobody waits for one who waits, so there is no
deadlock. What is agreed on is the ANCHOR; it changes on an active rank in the order of its own round, and on a passive
one in its serving lane, so that every averaging is atomic and the sum over all stays.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from partita.lowering.agreement import SERVE, lanes_of, program_of
from partita.lowering.averages import local_step
from partita.lowering.samples import Draft, ReplicaGroup, separate
from partita.plan.sync import Consistency, Gossip, Sync
from partita.program.instruction import After, Apply, Instruction, Mix, Receive, Send, Snapshot, Term
from partita.program.program import Program, Role
from partita.program.space import Space


def pairs_up(sync: Sync) -> bool:
    """Whether workers average two by two without waiting for each other's steps."""
    return (
        isinstance(sync.through, Gossip)
        and sync.through.direction == "pair"
        and sync.consistency == Consistency(staleness=-1)
    )


@dataclass(frozen=True, slots=True)
class Averaging:
    """The `number`-th averaging of a pair in a round: rank `active` asks rank `passive`."""

    number: int
    active: int
    passive: int


def averagings_of(gossip: Gossip, ranks: int) -> tuple[Averaging, ...]:
    """Who averages with whom in a round: at each of its draws every even rank asks an odd one, all alike likely."""
    draw, odd = random.Random(gossip.seed), range(1, ranks, 2)
    return tuple(Averaging(n, rank, draw.choice(odd)) for n in range(gossip.draws) for rank in range(0, ranks, 2))


def paired(draft: Draft, steps: int) -> Program:
    """Workers that average two by two (DP-22); `steps` (0: a step or a period for each draw) of a round."""
    through, period = draft.sync.through, draft.sync.frequency.period
    assert isinstance(through, Gossip)
    steps = steps or through.draws * period
    averagings = tuple(one for one in averagings_of(through, len(draft.workers)) if one.number * period < steps)
    roles = []
    for group in draft.groups:
        for one in separate(group, group.ranks):
            (rank,) = one.ranks
            body = (_passive if rank % 2 else _active)(draft, one, steps, averagings)
            roles.append(Role(f"{group.name}-{rank}", (rank,), tuple(body), lanes_of(body, SERVE)))
    return program_of(draft, tuple(roles), steps=steps, semantics="consensus")


def _own(draft: Draft, group: ReplicaGroup, steps: int, number: int) -> list[Instruction]:
    """The steps between two averagings, and what they come to in DELTA."""
    period, tag, body = draft.sync.frequency.period, f".{number}", list[Instruction]()
    for i, bucket in enumerate(draft.buckets):
        kept = Mix(bucket.name, Space.DELTA, (Term(Space.PARAMETER, (-1.0,)),))
        body.append(Instruction(f"K{i}{tag}", kept, "compute", (After(f"T{i}{tag}"),)))
    for step in range(number * period, min((number + 1) * period, steps)):
        body += local_step(draft, group, step)
    for i, bucket in enumerate(draft.buckets):
        changed = Mix(bucket.name, Space.DELTA, (Term(Space.DELTA), Term(Space.PARAMETER)))
        body.append(Instruction(f"C{i}{tag}", changed, "compute"))
    return body


def _before(name: str, number: int, numbers: list[int]) -> After:
    """The instance of the one of `numbers` before this, which may be the round before's last."""
    place = numbers.index(number)
    return After(f"{name}.{numbers[place - 1]}", int(place == 0))


def _active(draft: Draft, group: ReplicaGroup, steps: int, averagings: tuple[Averaging, ...]) -> list[Instruction]:
    mine, body = [one for one in averagings if one.active == group.ranks[0]], list[Instruction]()
    numbers = [one.number for one in mine]
    for one in mine:
        tag, peer, ends = f".{one.number}", one.passive, list[Instruction]()
        for i, bucket in enumerate(draft.buckets):
            name, joined = bucket.name, _before(f"G{i}", one.number, numbers)
            taken = Mix(name, Space.PARAMETER, (Term(Space.ANCHOR),))
            up, down = Send(name, (peer,), f"{name}.ask{tag}", Space.ANCHOR), f"{name}.mean{tag}"
            mean = Mix(name, Space.ANCHOR, (Term(Space.INBOX, peer=(peer,)),))
            grown = Mix(name, Space.ANCHOR, (Term(Space.ANCHOR), Term(Space.DELTA)))
            body += [
                Instruction(f"T{i}{tag}", taken, "compute"),
                Instruction(f"S{i}{tag}", up, f"to{peer}", (joined,)),
                Instruction(f"R{i}{tag}", Receive(name, (peer,), down, Space.INBOX), f"from{peer}", (joined,)),
            ]
            ends += [
                Instruction(f"X{i}{tag}", mean, "compute", (After(f"R{i}{tag}"), After(f"S{i}{tag}"))),
                Instruction(f"G{i}{tag}", grown, "compute"),
            ]
        body += _own(draft, group, steps, one.number) + ends
    return body


def _passive(draft: Draft, group: ReplicaGroup, steps: int, averagings: tuple[Averaging, ...]) -> list[Instruction]:
    rank, body, period = group.ranks[0], list[Instruction](), draft.sync.frequency.period
    numbers = list(range(-(-steps // period)))
    for number in numbers:
        for i, bucket in enumerate(draft.buckets):
            taken = Snapshot(bucket.name, rank, Space.ANCHOR)
            joined = _before(f"G{i}", number, numbers)
            body.append(Instruction(f"T{i}.{number}", taken, "serve", (joined,), priority=1))
        body += _own(draft, group, steps, number)
        for i, bucket in enumerate(draft.buckets):
            grown = Apply(bucket.name, rank, 1.0, 1, delta=True, into=Space.ANCHOR)
            body.append(Instruction(f"G{i}.{number}", grown, "serve", (After(f"C{i}.{number}"),), priority=1))
    for peer in sorted({one.active for one in averagings if one.passive == rank}):
        turns = [one.number for one in averagings if (one.active, one.passive) == (peer, rank)]
        for number in turns:
            for i, bucket in enumerate(draft.buckets):
                body += _served(bucket.name, f"{i}.{peer}", peer, number, turns)
    return body


def _served(bucket: str, label: str, peer: int, number: int, turns: list[int]) -> list[Instruction]:
    """An averaging on the passive side."""
    tag = f".{number}"
    came = Receive(bucket, (peer,), f"{bucket}.ask{tag}", Space.INBOX)
    mean = Apply(bucket, peer, 1.0, 1, delta=True, scale=0.5, into=Space.ANCHOR, keep=0.5)
    back = Send(bucket, (peer,), f"{bucket}.mean{tag}", Space.OUTBOX)
    waits = (After(f"I{label}{tag}"), _before(f"D{label}", number, turns))
    return [
        Instruction(f"I{label}{tag}", came, f"from{peer}", (_before(f"A{label}", number, turns),)),
        Instruction(f"A{label}{tag}", mean, "serve", waits, priority=1),
        Instruction(f"V{label}{tag}", Snapshot(bucket, peer, Space.ANCHOR), "serve", (After(f"A{label}{tag}"),)),
        Instruction(f"D{label}{tag}", back, f"to{peer}", (After(f"V{label}{tag}"),)),
    ]
