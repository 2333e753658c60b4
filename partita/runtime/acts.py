"""How a rank carries out each act of the instruction set.

Each function starts one instance. It returns None if that is done at once, otherwise what the lane has to wait for: one
Pending, or a generator of them (Steps).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch

from partita.errors import TaskError, users_code
from partita.graph.graph import TANGENT, Graph
from partita.graph.operator import Ref
from partita.program.instruction import (
    Apply,
    Clip,
    Collective,
    Combine,
    Compute,
    Decode,
    Encode,
    Free,
    Instruction,
    Load,
    Mark,
    Mix,
    Norm,
    Pack,
    Receive,
    Scale,
    Send,
    Settle,
    Snapshot,
    Update,
)
from partita.program.layout import MASS, WEIGHT
from partita.program.program import Segment
from partita.program.space import Kind, Space
from partita.program.versions import makes_version
from partita.runtime.bounds import clip, norm
from partita.runtime.buffers import change, settle
from partita.runtime.coding import HopCode, collect, decode, encode, receive_coding, send_coding
from partita.runtime.desync import check_collective
from partita.runtime.draws import DRAWS
from partita.runtime.feed import check_shapes, default_floats
from partita.runtime.finite import check_loss, check_outgoing, check_update
from partita.runtime.membership import droppable, other_end, stale
from partita.runtime.mixing import mix
from partita.runtime.owned import allocate, release
from partita.runtime.rank import Rank
from partita.runtime.segment import Environment, key
from partita.runtime.serving import apply, mark, snapshot
from partita.runtime.state import counted, rows, shaped
from partita.runtime.tolerant_sum import tolerant_sum
from partita.runtime.values import receive_values, send_values
from partita.tracing.draws import Draws
from partita.transport.hops import by_schedule
from partita.transport.streams import by_streams
from partita.transport.transport import Pending, Steps
from partita.wire.algorithms import by_messages, course

Carry = Callable[[Rank, Any, str, int], Pending | Steps | None]


def load(rank: Rank, act: Load, name: str, round: int) -> None:
    """Read the samples of a minibatch's part and put them into an environment."""
    start = rank.role.mine(act.start, rank.rank)
    positions = rank.feed.positions(rank.step(round, act.step), start, act.count)
    environment = rank.environment(round, act.part)
    leaves: list[torch.Tensor] = []
    if act.fetch:
        leaves, rest = rank.feed.read(positions, rank.device, rank.floating)
        if rank.whole is None:
            check_shapes(rank.graph, leaves, act.count, rank.step(round, act.step))
        else:
            environment |= rank.whole.given(leaves, rest)
            leaves += [torch.empty(0)] * (len(rank.graph.inputs) - len(leaves))  # batches may differ in number
    suffix = f">{act.stage}" if act.stage >= 0 else ""
    named = {f"input.{i}{suffix}": leaf for i, leaf in enumerate(leaves)}
    environment |= {name: leaf for name, leaf in named.items() if Ref(name) in rank.reads}
    environment[DRAWS] = None if rank.draws is None else Draws(rank.draws, rank.step(round, act.step), tuple(positions))
    if act.weight:
        seed, dtype = TANGENT + suffix, seed_dtype(rank, act.stage)
        environment[seed] = torch.full((), act.weight, dtype=dtype, device=rank.device)


def seed_dtype(rank: Rank, stage: int) -> torch.dtype:
    """The dtype of what seeds backward: the captured loss's; fp64 where all that was captured in fp32 is computed in
    it, and fp32 where a plan makes weights shorter than those that were captured."""
    if rank.floating is torch.float64:
        return torch.float64
    leaf = rank.graph_of(stage).leaves.get(TANGENT if stage < 0 else f"{TANGENT}>{stage}")
    made = torch.float32 if leaf is None else getattr(torch, leaf.dtype)
    short = rank.floating in (torch.bfloat16, torch.float16)
    return made if made is torch.float64 or short else torch.float32


def compute(rank: Rank, act: Compute, name: str, round: int) -> None:
    """Run a segment in an environment; after a forward pass, keep the loss."""
    environment = rank.environments[round, act.part]
    with default_floats(rank.floating):
        rank.code[act.segment](environment, rank.state.leaves)
    segment = rank.program.segment[act.segment]
    graph = rank.graph_of(segment.stage)
    change(rank, graph, environment, segment)
    if segment.start < graph.forward_length <= segment.stop:
        forwarded(rank, graph, environment, rank.step(round, act.step), segment)
        seed = TANGENT if segment.stage < 0 else f"{TANGENT}>{segment.stage}"
        if rank.program.scaling and rank.state.scaler and seed in environment:
            environment[seed] = environment[seed] * rank.state.scaler.at(round)


def forwarded(rank: Rank, graph: Graph, environment: Environment, step: int, segment: Segment) -> None:
    """Keep the loss of a forward pass and, where the loss is a weighted sum, the weight of its samples; the inverse
    weight seeds backward where no other part of the minibatch counts."""
    ref = graph.weight
    if ref is not None:
        weight = environment[key(ref)] if key(ref) in environment else rank.state.leaves[ref.name]
        environment[WEIGHT] = weight.detach().double().reshape(1)
        rank.weights[step] = rank.weights.get(step, 0.0) + environment[WEIGHT][0]
        if segment.stage < 0 and TANGENT not in environment:
            environment[TANGENT] = counted(environment[WEIGHT][0]).reciprocal().to(seed_dtype(rank, segment.stage))
        if graph.last_reader.get(ref, 0) < segment.stop:
            environment.pop(key(ref), None)
    loss = environment.pop(key(graph.loss), None)
    if loss is not None:
        if not rank.program.scaling:
            check_loss(rank, loss, step)
        if (rank.program.drops or rank.spare) and ref is None:
            rank.weights[step] = rank.weights.get(step, torch.zeros(())) + segment.weight
        part = loss.detach() if segment.weight == 1.0 else loss.detach() * segment.weight
        rank.losses[step] = rank.losses[step] + part if step in rank.losses else part


def gradients(rank: Rank, bucket: str, part: str, round: int, stage: int = -1) -> list[torch.Tensor]:
    """Take the gradients of a bucket's pieces out of an environment. They are zeros for a tied weight whose gradient
    another stage computes, and for the weight of samples that another stage knows."""
    environment = rank.environments[round, part]
    if bucket == WEIGHT:
        return [environment.get(WEIGHT, torch.zeros(1, dtype=torch.float64))]
    graph = rank.graph_of(stage)
    wanted = dict(graph.gradients)
    pieces = rank.program.bucket[bucket].pieces
    found = []
    for piece in pieces:
        ref = wanted.get(piece.parameter)
        whole = torch.zeros_like(rank.state.leaves[piece.parameter]) if ref is None else environment[key(ref)]
        found.append(rows(whole, piece))
        if piece.last and ref is not None and ref not in graph.shared_gradients:
            del environment[key(ref)]
    return found


def pack(rank: Rank, act: Pack, name: str, round: int) -> None:
    """Copy, or add, the gradients of an environment into a bucket."""
    if not rank.program.bucket[act.bucket].keeps(Space.GRADIENT):
        allocate(rank.state.gradient[act.bucket][rank.slot(round)])
    if act.space is Space.GRADIENT:
        views = rank.state.gradient_views[act.bucket][rank.slot(round)]
    else:
        views = shaped(rank.state.flat(act.space, act.bucket, 0), rank.state.views[act.bucket])
    found = gradients(rank, act.bucket, act.part, round, act.stage)
    if act.add:
        torch._foreach_add_(views, found)
    else:
        torch._foreach_copy_(views, found)


def collective(rank: Rank, act: Collective, name: str, round: int) -> Pending | Steps:
    """Start a collective of the transport, or one that follows a schedule of the wire room."""
    group = next(group for group in act.groups if rank.rank in group)
    if act.space is Space.CODED:
        rank.collectives_begun[name] = round + 1
        return collect(rank, act, group, name, round)
    flat = rank.state.flat(act.space, act.bucket, rank.slot(round))
    check_collective(rank, act, name, round, flat)
    if rank.spare.intersection(group):
        return tolerant_sum(rank, act, flat, group, name, round)
    if by_messages(act):
        schedule, edges = course(rank.program, act, len(group))
        code = HopCode(act, name, rank, round) if act.codec else None
        if schedule.sparse:
            return by_streams(rank.transport, schedule, flat, group, name, round, rank.maps, code)
        return by_schedule(rank.transport, schedule, flat, group, name, round, code, edges)
    bucket = rank.program.bucket[act.bucket]
    shares = bucket.shares
    if act.kind is Kind.ALL_GATHER and not bucket.keeps(act.space):
        own = rank.state.owned[act.bucket]
        allocate(flat)[own.start : own.stop] = own.parameter
    lane, edges = rank.role.on_name[name].lane, shares.edges if shares else ()
    return rank.transport.collective(act.kind, flat, group, lane, name, round, edges)


def free(rank: Rank, act: Free, name: str, round: int) -> None:
    """Store the rank's own part of a bucket and release the memory of the whole."""
    slot = rank.slot(round)
    flat = rank.state.flat(act.space, act.bucket, slot)
    if act.space is Space.GRADIENT:
        own = rank.state.owned[act.bucket]
        came = flat[own.start : own.stop]
        if act.add:
            own.gradient[slot] += came
        else:
            own.gradient[slot].copy_(came)
    release(flat)


def send(rank: Rank, act: Send, name: str, round: int) -> Pending | Steps:
    """Start sending a bucket, a coding or a parcel of values."""
    if act.space is Space.VALUE:
        return send_values(rank, act, round)
    to = rank.role.mine(act.to, rank.rank)
    if act.space is Space.CODED:
        return send_coding(rank, act, to, round)
    if act.space is Space.OUTBOX:
        return rank.transport.send(rank.state.outbox[act.bucket, to], to, act.key, round)
    return rank.transport.send(rank.state.flat(act.space, act.bucket, rank.slot(round)), to, act.key, round)


def receive(rank: Rank, act: Receive, name: str, round: int) -> Pending | Steps:
    """Start receiving a bucket, a coding or a parcel of values."""
    if act.space is Space.VALUE:
        return receive_values(rank, act, round)
    source = rank.role.mine(act.source, rank.rank)
    if act.space is Space.CODED:
        return receive_coding(rank, act, source, round)
    if act.space is Space.INBOX:
        return rank.transport.receive(rank.state.inbox_of(act.bucket, source), source, act.key, round)
    return rank.transport.receive(rank.state.flat(act.space, act.bucket, rank.slot(round)), source, act.key, round)


def combine(rank: Rank, act: Combine, name: str, round: int) -> None:
    """Sum inboxes in the order of the sources, so that every server and every schedule gets the same bits."""
    flat = rank.state.gradient[act.bucket][rank.slot(round)]
    first, *others = [
        flat if source == rank.rank else rank.state.inbox_of(act.bucket, source) for source in act.sources
    ]
    for other in others:
        first += other
    if first is not flat:
        flat.copy_(first)


def scale(rank: Rank, act: Scale, name: str, round: int) -> None:
    """Multiply a bucket by a number, and divide it by the number in another bucket, if that is not 0: samples that do
    not count have no gradient."""
    if round < act.lag:
        return
    slot = rank.slot(round - act.lag)
    flat = rank.state.mine(act.space, act.bucket, slot)
    if act.by:
        number = rank.state.flat(Space.ANCHOR if act.by == MASS else Space.GRADIENT, act.by, slot)[0]
        flat.div_(counted(number))
    if act.factor != 1.0:
        flat.mul_(act.factor)


def update(rank: Rank, act: Update, name: str, round: int) -> None:
    """Step a bucket's optimizer, unless its gradient does not exist yet or overflowed."""
    if round < act.lag or act.bucket not in rank.state.optimizer:
        return
    scaler = rank.state.scaler
    if act.part:
        found = gradients(rank, act.bucket, act.part, round)
    else:
        found = rank.state.my_gradients(act.bucket, rank.slot(round - act.lag))
    if scaler and not scaler.usable(round):
        return
    found = scaler.unscaled(found, rank.state.stepped(act.bucket), round) if scaler else found
    rank.state.step(act.bucket, found, rank.program, share=act.share)
    if act.part and not scaler:
        check_update(rank, act.bucket, found, rank.step(round, 0))
    if makes_version(rank.program, rank.role, act.bucket):
        rank.state.ledger.step(act.bucket)
    rank.state.round(act.bucket)
    if act.bucket in rank.state.schedule:
        advice = "give one that lasts as long as the run"
        with users_code(f"the task's schedule at step {rank.step(round - act.lag, 0)}", advice, TaskError):
            rank.state.schedule[act.bucket].step()


ACTS: Final[dict[type, Carry]] = {
    Load: load, Compute: compute, Settle: settle, Pack: pack, Collective: collective, Send: send, Receive: receive,
    Combine: combine, Free: free, Scale: scale, Mix: mix, Norm: norm, Clip: clip, Update: update, Encode: encode,
    Decode: decode, Apply: apply, Snapshot: snapshot, Mark: mark,
}  # fmt: skip


def carry_out(rank: Rank, instruction: Instruction, round: int) -> Pending | Steps | None:
    """Start one instance of an instruction on a rank. Gradients are looked at before they leave; who gets a change of
    weights sees it by the next loss. An environment is dropped after the last instance that uses it."""
    act, name = instruction.act, instruction.name
    if isinstance(act, Collective | Send) and act.space is Space.GRADIENT:
        check_outgoing(rank, act.bucket, act.space, round)
    peer, start = other_end(rank, act), partial(ACTS[type(act)], rank, act, name, round)
    pending = start() if peer < 0 else droppable(rank, peer, lambda: not stale(rank, instruction, round), start)
    if part := getattr(act, "part", ""):
        rank.leave(round, part)
    return pending
