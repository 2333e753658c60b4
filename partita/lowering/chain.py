"""Servers whose state others have too: what a server has summed goes down a chain, and answers wait for its end
(FT-02).

server    serve   C0 U0 C1 U1            C: the sum of all workers' gradients
          copy       X0-- X1--           X: it goes on, so that copies cost no more than one gradient each
          kept            K0   K1        K: the whole chain has it; D, the answer to each worker, waits for it
          to w               D0-- D1--
follower  copied     Y0-- Y1--           the same optimizer on the same sums: bit for bit the same weights
          serve           U0   U1
          ack                A0   A1     a word back, from the last one on

Whoever of a chain is lost, its neighbours have what it answered for (DistBelief's, PS-OSDI14's and Adam's replicas).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from partita.graph.graph import Graph
from partita.lowering.agreement import lanes_of
from partita.lowering.norm import WORDS
from partita.lowering.samples import Draft
from partita.plan.plan import Plan
from partita.plan.sync import Servers
from partita.plan.wire import Priority
from partita.program.instruction import After, Combine, Instruction, Receive, Send, Update
from partita.program.layout import WORD
from partita.program.program import Program, Role
from partita.program.space import Space

Chain = tuple[int, ...]


def chain_gaps(graph: Graph, plan: Plan) -> Iterator[tuple[bool, str]]:
    """(whether a plan with replicas of servers asks for it, what) of all that is not brought about yet."""
    through, wire = plan.sync[0].through, plan.sync[0].wire
    if not isinstance(through, Servers) or through.replicas == 1:
        return
    yield not through.own, "replicas of servers on the devices of workers"
    yield bool(graph.clip_norm or graph.weight), "weighted losses or a bound on norms at replicated servers"
    yield wire.order is not Priority.FIFO, f"the order {wire.order} at replicated servers"


def in_chains(program: Program, draft: Draft) -> Program:
    """Lockstep servers, each followed by those that have a copy of what it has."""
    through = draft.sync.through
    assert isinstance(through, Servers)
    heads = draft.servers[: through.count]
    chains = [tuple(head + k * through.count for k in range(through.replicas)) for head in heads]
    held = {role.ranks[0]: role for role in program.roles if role.keeps == "server"}
    roles = [role for role in program.roles if role.keeps != "server"]
    for chain in chains:
        roles.append(_head(held[chain[0]], chain))
        names = {i.name[1:]: i.act.bucket for i in held[chain[0]].instructions if isinstance(i.act, Combine)}
        roles += [_follower(names, chain, k) for k in range(1, len(chain))]
    return replace(program, roles=tuple(roles), buckets=(*program.buckets, WORDS))


def _head(role: Role, chain: Chain) -> Role:
    body: list[Instruction] = []
    for one in role.instructions:
        if isinstance(one.act, Combine):
            label, bucket = one.name[1:], one.act.bucket
            body.append(replace(one, after=(*one.after, After(f"X{label}", 1))))
            body += _passed_on(label, bucket, chain[1], f"C{label}")
        elif isinstance(one.act, Send):
            body.append(replace(one, after=(*one.after, After(f"K{one.name[1:].split('.')[0]}"))))
        else:
            body.append(one)
    return _role(role.name, role.ranks, body)


def _follower(names: dict[str, str], chain: Chain, k: int) -> Role:
    body: list[Instruction] = []
    before, last = chain[k - 1], k == len(chain) - 1
    for label, bucket in names.items():
        free = (After(f"U{label}", 1),) if last else (After(f"U{label}", 1), After(f"X{label}", 1))
        came = Receive(bucket, (before,), f"{bucket}.copy", Space.GRADIENT)
        body.append(Instruction(f"Y{label}", came, "copied", free))
        body.append(Instruction(f"U{label}", Update(bucket), "serve", (After(f"Y{label}"),)))
        body += [] if last else _passed_on(label, bucket, chain[k + 1], f"Y{label}")
        safe = (After(f"U{label}"),) if last else (After(f"U{label}"), After(f"K{label}"))
        body.append(Instruction(f"A{label}", Send(WORD, (before,), f"{bucket}.kept", Space.PARAMETER), "ack", safe))
    return _role(f"copy-{chain[k]}-of-{chain[0]}", (chain[k],), body)


def _passed_on(label: str, bucket: str, to: int, made: str) -> list[Instruction]:
    """A sum to the next of the chain, and its word that all after it have it."""
    return [
        Instruction(f"X{label}", Send(bucket, (to,), f"{bucket}.copy", Space.GRADIENT), "copy", (After(made),)),
        Instruction(f"K{label}", Receive(WORD, (to,), f"{bucket}.kept", Space.INBOX), "kept", (After(f"X{label}"),)),
    ]


def _role(name: str, ranks: tuple[int, ...], body: list[Instruction]) -> Role:
    return Role(name, ranks, tuple(body), lanes_of(body), keeps="server")
