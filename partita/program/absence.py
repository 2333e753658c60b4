"""Which instructions are left out of a Program while one of its ranks is away, and whether the others can go on.

server  from 2   I0.2 I1.2 ..            involve rank 2 alone: left out while it is away
        serve    U0.1 V0.1 U0.2 V0.2     so are U0.2 and V0.2; instructions after them do not wait for them
worker  compute  T F B U X               X, the mean that comes back from rank 2, is skipped

A rank that comes back enters at the round `at` that the others have reached. It receives the answers of the round
before, which bring the current weights; the rest of that round, and all earlier rounds, count as done on both ends.

If a server of a replicated chain is lost, nothing is left out: another server of the chain takes over its part.
"""

from __future__ import annotations

from collections.abc import Collection

from partita.program.instruction import (
    Apply,
    Collective,
    Combine,
    Decode,
    Instruction,
    Mark,
    Mix,
    Receive,
    Send,
    Snapshot,
    Update,
)
from partita.program.program import Program, Role
from partita.program.space import Space


def concerns(role: Role, rank: int, instruction: Instruction) -> frozenset[int]:
    """The one other rank that an instruction of `rank` involves, as a set; empty if it involves none or several."""
    found = set[int]()
    match instruction.act:
        case Send(to=peer) | Receive(source=peer):
            found = {role.mine(peer, rank)}
        case Apply(source=peer) | Snapshot(to=peer):
            found = {peer}
        case Mix(terms=terms):
            found = {role.mine(term.peer, rank) if term.space is Space.INBOX else rank for term in terms}
        case Mark():
            waits = [concerns(role, rank, role.on_name[after.name]) for after in instruction.after]
            found = set[int]().union(*waits) if all(waits) else found
    return frozenset(found - {rank}) if len(found) == 1 else frozenset()


def left_out(role: Role, rank: int, away: Collection[int]) -> frozenset[str]:
    """The instructions of `rank` that are left out while the ranks in `away` are away."""
    return frozenset(i.name for i in role.instructions if concerns(role, rank, i) & frozenset(away))


def met_by(program: Program, peer: int) -> tuple[int, ...]:
    """The ranks that exchange messages with `peer`; of a group that sums up with it, only the first rank."""
    ranks = ((role, rank) for role in program.roles for rank in role.ranks if rank != peer)
    acts = program.acts(Collective)
    firsts = {group[0] for act in acts for group in act.groups if peer in group}
    return tuple(sorted(rank for role, rank in ranks if rank in firsts or left_out(role, rank, (peer,))))


def chain_of(program: Program, server: int) -> tuple[int, ...]:
    """The servers of a replicated chain that update the same buckets as `server`, in the order of the chain; () if it
    updates none."""
    mine = _stepped(program.role_of[server])
    same = (role for role in program.roles if role.keeps == "server" and _stepped(role) == mine)
    return tuple(sorted(rank for role in same for rank in role.ranks)) if mine else ()


def successor_of(program: Program, there: Collection[int], lost: int) -> int:
    """The rank that takes over the part of the server `lost`: the next one of its chain that is `there`, or else the
    last one before it; -1 if there is none."""
    left = [rank for rank in chain_of(program, lost) if rank in there]
    return next((rank for rank in left if rank > lost), left[-1] if left else -1)


def _stepped(role: Role) -> frozenset[str]:
    return frozenset(act.bucket for act in role.acts(Update))


def expendable(program: Program, peer: int) -> bool:
    """Whether the others can go on without `peer`. A worker is expendable if all that it sends enters by instructions
    that involve it alone, or as part of a mean that can be taken over the others; a rank that writes to shared memory
    never is. A server is, if others of its chain have the same state."""
    own = program.role_of[peer]
    if own.keeps == "server":
        return len(chain_of(program, peer)) > 1
    if own.serves or program.size == 1 or program.semantics == "racy":
        return False
    for role, i in program.instructions():
        act = i.act
        if isinstance(act, Collective) and any(peer in group for group in act.groups):
            if program.semantics != "consensus" or act.codec or act.space not in (Space.PARAMETER, Space.DELTA):
                return False
            if any(peer == group[0] for group in act.groups):
                return False
        if set(role.ranks) == {peer}:
            continue
        if isinstance(act, Combine | Decode) and peer in act.sources:
            return False
        if isinstance(act, Receive) and act.space is not Space.INBOX and peer in act.source:
            return False
        if isinstance(act, Mix) and any(peer in term.peer for term in act.terms):
            weights = (sum(role.mine(term.factor, rank) for term in act.terms) for rank in role.ranks)
            if not all(concerns(role, rank, i) for rank in role.ranks) and any(abs(w - 1) > 1e-6 for w in weights):
                return False
    return True


def answered(program: Program, peer: int) -> bool:
    """Whether the answers that `peer` receives in a round bring it the current weights, as its parameters or as a
    centre."""
    role, spaces = program.role_of[peer], (Space.PARAMETER, Space.ANCHOR)
    came = {act.bucket for act in role.acts(Receive) if act.space in spaces}
    return program.drops or {bucket.name for bucket in program.trained} <= came


def returns(program: Program, peer: int) -> bool:
    """Whether `peer` can come back and go on from the current weights. It cannot if it keeps dual variables (ADMM):
    they are lost, while the others still count its last contribution. Nor can a server, whose part has been taken over.
    """
    if program.role_of[peer].keeps == "server":
        return False
    return all(space is not Space.DUAL for space, _ in program.kept(program.role_of[peer]))


def entered(program: Program, rank: int, at: int, peer: int) -> dict[str, int]:
    """Instruction -> rounds that count as done on `rank` when `peer` enters at round `at`: all instructions of the peer
    itself, and on other ranks those that involve it. Answers of the round before are still to be given, if they bring
    the weights."""
    found, role, late = dict[str, int](), program.role_of[rank], answered(program, peer)
    for i in role.instructions:
        answer = late and isinstance(i.act, Receive if rank == peer else Send | Snapshot)
        if rank == peer or peer in concerns(role, rank, i):
            found[i.name] = at - answer
    return found


def shared(program: Program, one: int, other: int) -> tuple[tuple[Space, str], ...]:
    """(space, bucket) of the tensors that two workers both keep from round to round, in the same order for both."""
    weights = {(Space.PARAMETER, bucket.name) for bucket in program.trained}
    both = {*program.kept(program.role_of[one])} & {*program.kept(program.role_of[other])}
    return tuple(sorted(weights | both))
