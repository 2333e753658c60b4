"""Agreement between neighbours: each worker mixes its weights with those of some others.

a fixed graph, messages beside the pass          gossip, after the worker's own steps
compute  F B0 B1 M0 U0 M1 U1 |                   compute  F B U | F B U M0 M1 |
to 1     S0-- S1--                               to 1            S0-- S1--
from 1   R0-- R1--                               from 3          R0-- R1--

Partners of gossip are drawn for a number of exchanges, which make a round; drawn ones repeat. What is pushed has no row
that sums to 1: the sum over all ranks stays in ANCHOR, with the MASS that it weighs, and weights are their quotient.
"""

from __future__ import annotations

from dataclasses import replace

from partita.cluster.cluster import Cluster
from partita.lowering.agreement import COMPUTE, DATA, program_of
from partita.lowering.averages import local_step
from partita.lowering.mixing_matrices import Matrix, mixing_matrices_of
from partita.lowering.samples import Draft, ReplicaGroup, separate
from partita.plan.sync import Gossip, Neighbours
from partita.program.instruction import After, Instruction, Mix, Receive, Scale, Send, Term, Update
from partita.program.layout import MASS, of_one_number
from partita.program.program import Lane, Program, Role
from partita.program.space import Space


def exchanged(draft: Draft, steps: int, cluster: Cluster) -> Program:
    """Workers that mix with their neighbours' weights (DP-21) or with those of drawn partners (DP-23); `steps` (0: all)
    of a round."""
    through, period = draft.sync.through, draft.sync.frequency.period
    assert isinstance(through, Neighbours | Gossip)
    matrices = mixing_matrices_of(through, len(draft.workers), cluster)
    steps = steps or len(matrices) * period
    exchanges = tuple((n * period if early(through) else (n + 1) * period - 1, m) for n, m in enumerate(matrices))
    roles = tuple(_role(draft, one, steps, exchanges) for group in draft.groups for one in separate(group, group.ranks))
    program = program_of(draft, roles, steps=steps, semantics="consensus")
    mass = (of_one_number(MASS),) if pushes(through) else ()
    return replace(program, buckets=program.buckets + mass)


def early(through: Neighbours | Gossip) -> bool:
    """Whether weights are mixed beside the pass, before its update, as D-PSGD does."""
    return isinstance(through, Neighbours)


def pushes(through: object) -> bool:
    """Whether ranks give parts of their sums away, so that what they hold has to be weighed."""
    return isinstance(through, Gossip) and through.direction == "push"


def _role(draft: Draft, group: ReplicaGroup, steps: int, exchanges: tuple[tuple[int, Matrix], ...]) -> Role:
    """One worker's round: its own steps, and before the updates or after each the exchange that is due."""
    body, through, rank, lanes = list[Instruction](), draft.sync.through, group.ranks[0], dict[str, None]()
    assert isinstance(through, Neighbours | Gossip)
    push, due = pushes(through), {at: matrix for at, matrix in exchanges if at < steps}
    before = dict(zip(due, [max(due, default=0), *due], strict=False))
    for step in range(steps):
        own = local_step(draft, group, step)
        mixed = _exchange(draft, rank, due[step], (before[step], step, steps)) if step in due else []
        lanes |= {i.lane: None for i in mixed if i.lane != "compute"}
        first = next(k for k, i in enumerate(own) if isinstance(i.act, Scale | Update)) if early(through) else len(own)
        if push:
            names = [bucket.name for bucket in draft.buckets]
            start = [_plus(f"E{i}.{step}", name, -1.0) for i, name in enumerate(names)]
            end = [_plus(f"G{i}.{step}", name, 1.0) for i, name in enumerate(names)]
            own, first = [*start, *own, *end], first + len(start) + len(end)
        body += [*own[:first], *mixed, *own[first:]]
    return Role(f"{group.name}-{rank}", group.ranks, tuple(body), (COMPUTE, DATA, *map(Lane, lanes)))


def _plus(name: str, bucket: str, factor: float) -> Instruction:
    return Instruction(
        name, Mix(bucket, Space.ANCHOR, (Term(Space.ANCHOR), Term(Space.PARAMETER, (factor,)))), "compute"
    )


def _exchange(draft: Draft, rank: int, matrix: Matrix, at: tuple[int, int, int]) -> list[Instruction]:
    """A rank's part of one exchange: weights to those who take them, those of others received, and the mixture; `at`
    has the step of the exchange before, its own, and the number of a round's steps."""
    before, step, steps = at
    through, tag = draft.sync.through, f".{step}"
    assert isinstance(through, Neighbours | Gossip)
    push = pushes(through)
    space = Space.ANCHOR if push else Space.PARAMETER
    sources = [j for j in range(len(matrix)) if j != rank and matrix[rank][j]]
    targets = [i for i in range(len(matrix)) if i != rank and matrix[i][rank]]
    # Weights may leave once they are final, and be mixed once they have left.
    done = After(f"U{{i}}.{(step or steps) - 1}", int(step == 0)) if early(through) else After(f"U{{i}}{tag}")
    sends, mixes = list[Instruction](), list[Instruction]()
    named = [(str(i), bucket.name) for i, bucket in enumerate(draft.buckets)] + ([("M", MASS)] if push else [])
    for label, name in named:
        ready = After(f"G0{tag}" if name == MASS else f"G{label}{tag}")
        ready = ready if push else replace(done, name=done.name.format(i=label))
        used = After(f"X{label}.{before}", int(before >= step))
        waits = list[After]()
        for j in targets:
            act = Send(name, (j,), f"{name}.x{tag}", space)
            sends.append(Instruction(f"S{label}.{j}{tag}", act, f"to{j}", (ready,)))
            waits.append(After(f"S{label}.{j}{tag}"))
        for j in sources:
            taken = Receive(name, (j,), f"{name}.x{tag}", Space.INBOX)
            sends.append(Instruction(f"R{label}.{j}{tag}", taken, f"from{j}", (used,)))
            waits.append(After(f"R{label}.{j}{tag}"))
        terms = (Term(space, (matrix[rank][rank],)), *(Term(Space.INBOX, (matrix[rank][j],), (j,)) for j in sources))
        mixes.append(Instruction(f"X{label}{tag}", Mix(name, space, terms), "compute", tuple(waits)))
    if push:
        for i, bucket in enumerate(draft.buckets):
            mixes.append(Instruction(f"Y{i}{tag}", Mix(bucket.name, Space.PARAMETER, (Term(Space.ANCHOR),)), "compute"))
            mixes.append(Instruction(f"Z{i}{tag}", Scale(bucket.name, by=MASS), "compute"))
    return sends + mixes
