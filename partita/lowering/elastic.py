"""Agreement with a centre that all have a copy of: tied by springs (EASGD), or by multipliers (ADMM).

compute  F B U | F B U C0 D0 X0 |     C: the centre moves by the sum of the round before, D: differences are
wire                      A0-----     taken anew, X: and off the weights; their sum hides behind the next period

`tied`: the same with a centre on a server, each worker at its own pace: D = rate (x - centre) with the centre of the
answer before, X: x -= D, S: D is pushed, R: the centre comes back.
"""

from __future__ import annotations

from partita.lowering.agreement import COMPUTE, DATA, WIRE, program_of
from partita.lowering.averages import local_step
from partita.lowering.samples import Draft, ReplicaGroup
from partita.plan.plan import Update
from partita.plan.sync import Payload
from partita.program.instruction import After, Collective, Instruction, Mix, Receive, Send, Term
from partita.program.program import Program, Role
from partita.program.space import Kind, Space

MINUS = (-1.0,)


def centred(draft: Draft, steps: int) -> Program:
    """Workers tied to a centre (DP-19), or in consensus by the method of multipliers (DP-20), after `steps` steps of
    their own (0: the period)."""
    steps = steps or draft.sync.frequency.period
    tied = _elastic if draft.sync.payload is Payload.ELASTIC else _multipliers
    roles = tuple(
        Role(group.name, group.ranks, (*own_steps(draft, group, steps), *tied(draft)), (COMPUTE, DATA, WIRE))
        for group in draft.groups
    )
    return program_of(draft, roles, steps=steps, semantics="consensus")


def momentum_of(update: Update) -> float:
    """Nesterov's momentum around the task's rule, if the plan asks for it."""
    return next((dict(c.settings).get("momentum", 0.0) for c in update.corrections if c.name == "nesterov"), 0.0)


def own_steps(draft: Draft, group: ReplicaGroup, steps: int) -> list[Instruction]:
    """The steps that a worker takes by itself, with momentum where the plan puts it around the rule."""
    body = list[Instruction]()
    for step in range(steps):
        pulled = _pulled(draft, step) if draft.sync.payload is Payload.DUAL else []
        body += _ahead(draft, step, local_step(draft, group, step, pulled))
    return body


def _pulled(draft: Draft, step: int) -> list[Instruction]:
    """The gradient of the augmented Lagrangian: f's + multiplier + penalty x (weights - centre)."""
    terms = (Term(Space.GRADIENT), Term(Space.DUAL), Term(Space.DELTA, (draft.sync.outer.penalty,)))
    body = list[Instruction]()
    for i, bucket in enumerate(draft.buckets):
        body.append(Instruction(f"G{i}.{step}.x", _apart(bucket.name), "compute"))
        body.append(Instruction(f"G{i}.{step}", Mix(bucket.name, Space.GRADIENT, terms), "compute"))
    return body


def _apart(bucket: str) -> Mix:
    """x - centre. A weight that no sample moves is not apart from it by a rounding, as penalty x - penalty centre would
    be, of which Adam makes whole steps."""
    return Mix(bucket, Space.DELTA, (Term(Space.PARAMETER), Term(Space.ANCHOR, MINUS)))


def _ahead(draft: Draft, step: int, own: list[Instruction]) -> list[Instruction]:
    """With momentum: v = momentum v, x += v, then the rule at x, and what it changed joins v. Between, v lies as v - x,
    so that nothing else has to be kept."""
    momentum = momentum_of(draft.plan.update)
    if not momentum:
        return own
    v, x = Term(Space.VELOCITY), Term(Space.PARAMETER)
    before, after = list[Instruction](), list[Instruction]()
    for i, bucket in enumerate(draft.buckets):
        acts = (
            Mix(bucket.name, Space.VELOCITY, (Term(Space.VELOCITY, (momentum,)),)),
            Mix(bucket.name, Space.PARAMETER, (x, v)),
            Mix(bucket.name, Space.VELOCITY, (v, Term(Space.PARAMETER, MINUS))),
        )
        before += [Instruction(f"N{i}.{step}.{k}", act, "compute") for k, act in enumerate(acts)]
        after.append(Instruction(f"N{i}.{step}", Mix(bucket.name, Space.VELOCITY, (v, x)), "compute"))
    return [*before, *own, *after]


def pull(bucket: str, rate: float) -> tuple[Mix, Mix]:
    """The elastic force d = rate (x - centre), and x -= d."""
    force = Mix(bucket, Space.DELTA, (Term(Space.PARAMETER, (rate,)), Term(Space.ANCHOR, (-rate,))))
    return force, Mix(bucket, Space.PARAMETER, (Term(Space.PARAMETER), Term(Space.DELTA, MINUS)))


def multiplier_step(i: int, bucket: str, penalty: float, *after: After) -> list[Instruction]:
    """multiplier += penalty (x - centre)."""
    terms = (Term(Space.DUAL), Term(Space.DELTA, (penalty,)))
    return [
        Instruction(f"X{i}.x", _apart(bucket), "compute", after),
        Instruction(f"X{i}", Mix(bucket, Space.DUAL, terms), "compute"),
    ]


def tied(draft: Draft, group: ReplicaGroup, owners: tuple[int, ...]) -> list[Instruction]:
    """A round: `period` steps of the worker's own, then the elastic force between it and the centre of the last answer;
    what the worker moves by, the centre gets (DP-19, asynchronous)."""
    body, rate = own_steps(draft, group, sum(draft.pushes)), draft.sync.outer.rate
    for i, bucket in enumerate(draft.buckets):
        name, host = bucket.name, owners[i]
        force, taken = pull(name, rate)
        push = Send(name, (host,), f"{name}.up", Space.DELTA)
        back = Receive(name, (host,), f"{name}.down", Space.ANCHOR)
        body += [
            Instruction(f"D{i}", force, "compute", (After(f"R{i}", 1), After(f"S{i}", 1))),
            Instruction(f"X{i}", taken, "compute"),
            Instruction(f"S{i}", push, f"push{host}", (After(f"D{i}"),)),
            Instruction(f"R{i}", back, f"pull{host}", (After(f"D{i}"),)),
        ]
    return body


def _elastic(draft: Draft) -> list[Instruction]:
    """Each rank's pull; centre += the sum of all of them."""
    found, rate = list[Instruction](), draft.sync.outer.rate
    for i, bucket in enumerate(draft.buckets):
        name = bucket.name
        moved = Mix(name, Space.ANCHOR, (Term(Space.ANCHOR), Term(Space.DELTA)), lag=1)
        force, taken = pull(name, rate)
        found += [
            Instruction(f"C{i}", moved, "compute", (After(f"A{i}", 1),)),
            Instruction(f"D{i}", force, "compute"),
            Instruction(f"X{i}", taken, "compute"),
            Instruction(f"A{i}", _summed(draft, name), "wire", (After(f"X{i}"),)),
        ]
    return found


def _multipliers(draft: Draft) -> list[Instruction]:
    """z = mean of x + multiplier / penalty; multiplier += penalty (x - z)."""
    found, rho, share = list[Instruction](), draft.sync.outer.penalty, 1 / len(draft.workers)
    entering = list[Instruction]()
    for i, bucket in enumerate(draft.buckets):
        name = bucket.name
        said = Mix(name, Space.DELTA, (Term(Space.PARAMETER), Term(Space.DUAL, (1 / rho,))))
        mean = Mix(name, Space.ANCHOR, (Term(Space.DELTA, (share,)),))
        found += [
            Instruction(f"D{i}", said, "compute"),
            Instruction(f"A{i}", _summed(draft, name), "wire", (After(f"D{i}"),)),
        ]
        entering += [Instruction(f"O{i}", mean, "compute", (After(f"A{i}"),)), *multiplier_step(i, name, rho)]
    return found + entering


def _summed(draft: Draft, bucket: str) -> Collective:
    return Collective(Kind.ALL_REDUCE, bucket, (draft.workers,), Space.DELTA, draft.algorithm(bucket))
