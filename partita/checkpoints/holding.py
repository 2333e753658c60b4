"""What each rank writes into a checkpoint: state that only it has, and its share of state that several ranks have
equal.

State that is equal on several ranks is written once: each bucket by one of the ranks, in turn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from partita.checkpoints.contributions import save_contributions
from partita.checkpoints.entry import ALIKE, Entry, of_piece
from partita.checkpoints.ledgers import save_ledger
from partita.checkpoints.shard import Shard
from partita.program.instruction import Apply, Collective, Combine, Decode, Receive, Update
from partita.program.layout import WEIGHT
from partita.program.program import Program
from partita.program.space import Space
from partita.runtime.alike import alike, products, sums_into
from partita.runtime.gather import owners_of
from partita.runtime.generators import random_states
from partita.runtime.owned import Part
from partita.runtime.rank import Rank
from partita.runtime.rules import schedule_state
from partita.runtime.state import shaped
from partita.tracing.update_units import groups_of, states_of


@dataclass(frozen=True, slots=True)
class Copies:
    """The `ranks` that have a bucket's weights, the `steppers` whose optimizer steps on it, and whether the `weights`,
    and the optimizers' `state`, are equal on all of these; workers that are tied to a centre have their `own` weights
    beside those."""

    ranks: tuple[int, ...]
    weights: bool
    steppers: tuple[int, ...]
    state: bool
    own: tuple[int, ...] = ()


def copies_of(program: Program) -> dict[str, Copies]:
    """Bucket -> its Copies at the end of a round, derived from the instructions.

    Ranks that agree on gradients have equal weights and state; ranks that agree on weights only (averages) have equal
    weights. Of a bucket with a server that does not wait for all workers only the server's copy counts, and of memory
    that workers share what is there; where these take in changes of weights, workers step their own optimizers. Servers
    that update the same bucket (a replicated chain) have equal copies.
    """
    same = alike(program)
    updating: dict[str, set[int]] = {bucket.name: set() for bucket in program.trained}
    agreed: dict[str, set[Space]] = {bucket.name: set() for bucket in program.buckets}
    for role, instruction in program.instructions():
        act = instruction.act
        if isinstance(act, Update):
            updating[act.bucket] |= set(role.ranks)
        elif isinstance(act, Collective) and act.space is not Space.CODED:
            agreed[act.bucket].add(act.space)
        elif isinstance(act, Combine | Decode) and (space := sums_into(act)):
            agreed[act.bucket].add(space)
    for bucket in products(program):
        agreed[bucket].add(Space.GRADIENT)
    holding = updating | {bucket: set(role.ranks) for role in program.roles for bucket in role.serves}
    copied = {act.bucket for role in program.roles if role.keeps == "server" for act in role.acts(Update)}
    raced = {act.bucket for act in program.acts(Apply) if act.into is Space.SHARED}
    changed = {act.bucket for act in program.acts(Apply) if act.delta}
    came = program.acts(Receive)
    read = {act.bucket for act in came if act.space is Space.PARAMETER}
    found = {}
    for name, ranks in holding.items():
        steppers = updating[name] if name in changed and updating[name] else ranks
        ranks = {min(ranks)} if name in raced else ranks  # what is shared is there once, whoever writes it down
        alone, equal = len(ranks) == 1 or name in copied, bool(agreed[name]) and Space.PARAMETER in same[name]
        state = len(steppers) == 1 or name in copied or Space.GRADIENT in agreed[name]
        own = steppers - ranks if name in changed - raced - read else ()
        found[name] = Copies(
            tuple(sorted(ranks)), alone or equal, tuple(sorted(steppers)), state, tuple(sorted(own))
        )  # fmt: skip
    return _whole(program, found)


def _whole(program: Program, found: dict[str, Copies]) -> dict[str, Copies]:
    """The Copies of `found`, where a parameter that lies in several buckets is equal on all ranks in all of them or in
    none: it is read whole."""
    uneven = {name for name, copies in found.items() if not copies.weights}
    pieces = {bucket.name: {piece.parameter for piece in bucket.pieces} for bucket in program.trained}
    while more := {a for a in found if a not in uneven and any(pieces[a] & pieces[b] for b in uneven)}:
        uneven |= more
    return {name: replace(copies, weights=name not in uneven) for name, copies in found.items()}


def keepers_of(program: Program) -> dict[tuple[Space, str], tuple[int, ...]]:
    """(space, bucket) -> the ranks that keep that tensor from round to round, and so save it.

    A DELTA is saved only if changes may be in flight at the end of a round. Space.SERVED and Space.SHARED are left out:
    they are saved as the weights.
    """
    found: dict[tuple[Space, str], set[int]] = {}
    for role in program.roles:
        for place in program.kept(role):
            if place[0] not in (Space.SERVED, Space.SHARED) and (place[0] is not Space.DELTA or program.drain):
                found.setdefault(place, set()).update(role.ranks)
    return {place: tuple(sorted(ranks)) for place, ranks in found.items()}


def workers_of(program: Program) -> tuple[int, ...]:
    """The ranks that hold a model with its buffers."""
    return tuple(sorted(rank for role in program.roles if role.keeps == "model" for rank in role.ranks))


def held(rank: Rank, round: int, flying: int) -> Shard:
    """The shard of a checkpoint that `rank` writes after `round` rounds of its Program; the gradients of the last
    `flying` rounds are not applied yet."""
    shard, copies_by_bucket = Shard(), copies_of(rank.program)
    for i, (name, copies) in enumerate(copies_by_bucket.items()):
        mine = name in rank.state.owned or copies.ranks[i % len(copies.ranks)] == rank.rank
        if rank.rank in copies.ranks and (mine or not copies.weights):
            _parameters(shard, rank, name, ALIKE if copies.weights else rank.rank)
        if rank.rank in copies.own:
            _parameters(shard, rank, name, rank.rank, "own")
        if rank.rank not in copies.steppers:
            continue
        mine = name in rank.state.owned or copies.steppers[i % len(copies.steppers)] == rank.rank
        if mine or not copies.state:
            _optimizer(shard, rank, name, ALIKE if copies.state else rank.rank)
            _gradients(shard, rank, name, round, flying)
        if mine and i == 0 and name in rank.state.schedule:
            shard.values[Entry("schedule")] = schedule_state(rank.state.schedule[name])
    if rank.rank == min(first for one in copies_by_bucket.values() for first in one.ranks[:1]):
        _scale(shard, rank, round, flying)
    _kept(shard, rank)
    save_contributions(shard, rank)
    save_ledger(shard, rank)
    if rank.role.keeps == "model":
        _leaves(shard, rank)
        _weights(shard, rank, round, flying)
    for detail, state in random_states(rank.device).items():
        shard.tensors[Entry("random", detail=detail, rank=rank.rank)] = state
    return shard


def _parts(rank: Rank, bucket: str) -> list[tuple[Part, torch.Tensor]]:
    """(piece, its tensor) for all that a rank updates of a bucket: with sharded state its own part."""
    return list(zip(rank.state.parts(rank.program.bucket[bucket]), rank.state.views[bucket], strict=True))


def _parameters(shard: Shard, rank: Rank, bucket: str, owner: int, kind: str = "parameter") -> None:
    """The weights of a bucket: the server's, if this rank has a server beside its worker, or its machine's."""
    served = rank.state.kept.get((Space.SERVED, bucket), rank.state.kept.get((Space.SHARED, bucket)))
    parts = _parts(rank, bucket)
    views = [view for _, view in parts] if served is None else shaped(served, [view for _, view in parts])
    for (piece, _), view in zip(parts, views, strict=True):
        shard.tensors[of_piece(kind, piece, rank=owner)] = view


def _kept(shard: Shard, rank: Rank) -> None:
    """The tensors that an agreement keeps; those that are equal on all ranks are written by the first one."""
    same = alike(rank.program)
    for (space, bucket), keepers in keepers_of(rank.program).items():
        equal = space in same[bucket]
        writers, owner = (keepers[:1], ALIKE) if equal else (keepers, rank.rank)
        if rank.rank not in writers:
            continue
        flat, pieces = rank.state.kept[space, bucket], rank.program.bucket[bucket].pieces
        if not pieces:
            shard.tensors[Entry("kept", bucket, str(space), owner)] = flat
        for piece, view in zip(pieces, shaped(flat, rank.state.whole(bucket)) if pieces else (), strict=True):
            shard.tensors[of_piece("kept", piece, str(space), owner)] = view


def _optimizer(shard: Shard, rank: Rank, bucket: str, owner: int) -> None:
    if bucket not in rank.state.optimizer:  # the rank has no part of the bucket
        return
    optimizer, units = rank.state.optimizer[bucket], rank.state.units[bucket]
    states = states_of(optimizer, rank.state.views[bucket], units)
    places = zip(_parts(rank, bucket), states, groups_of(optimizer, units), strict=True)
    for (piece, view), state, group in places:
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == view.shape:
                shard.tensors[of_piece("state", piece, key, owner)] = value
            elif isinstance(value, torch.Tensor):
                shard.tensors[of_piece("factor", piece, key, owner)] = value
            else:
                shard.values[of_piece("factor", piece, key, owner)] = value
        settings = {key: value for key, value in optimizer.param_groups[group].items() if key != "params"}
        shard.values[of_piece("settings", piece, rank=owner)] = settings


def _gradients(shard: Shard, rank: Rank, bucket: str, round: int, flying: int) -> None:
    """The gradients in flight of a bucket that this rank will apply; `detail` is their age in rounds."""
    if not any(act.bucket == bucket and act.lag for act in rank.role.acts(Update)):
        return
    for age in range(1, flying + 1):
        views = rank.state.gradient_views[bucket][rank.slot(round - age)]
        for piece, view in zip(rank.program.bucket[bucket].pieces, views, strict=True):
            shard.tensors[of_piece("gradient", piece, str(age))] = _plain(rank, view, round - age)


def _plain(rank: Rank, gradient: torch.Tensor, round: int) -> torch.Tensor:
    """The gradient of a round in a form that any plan can load: in the master's dtype, without the loss scale."""
    scaler, masters = rank.state.scaler, list(rank.state.master.values())
    return gradient.to(masters[0].dtype) / scaler.at(round) if scaler and masters else gradient


def _scale(shard: Shard, rank: Rank, round: int, flying: int) -> None:
    """The loss scale, and the scales of the gradients in flight."""
    scaler = rank.state.scaler
    if rank.program.scaling and scaler:
        used = [scaler.at(round - age) for age in range(flying, 0, -1)]
        shard.values[Entry("scale")] = {"scale": scaler.scale, "good": scaler.good, "flying": used}


def _weights(shard: Shard, rank: Rank, round: int, flying: int) -> None:
    """The sample weights by which gradients in flight are still to be divided; written by the first worker."""
    if WEIGHT in rank.state.gradient and workers_of(rank.program)[0] == rank.rank:
        for age in range(1, flying + 1):
            shard.tensors[Entry("weight", detail=str(age))] = rank.state.gradient[WEIGHT][rank.slot(round - age)]


def _leaves(shard: Shard, rank: Rank) -> None:
    """Buffers, one copy for each worker if training changes them, and weights in no bucket (frozen ones), written by
    the first worker that has them."""
    changed = {name for name, _ in rank.graph.mutations}
    first = {name for name, owner in owners_of(rank.program, rank.graph).items() if owner == rank.rank}
    cut = {piece.parameter for bucket in rank.program.trained for piece in bucket.pieces}
    for buffer in rank.graph.buffers:
        if buffer.name in first or (buffer.name in changed and buffer.name in rank.state.leaves):
            owner = rank.rank if buffer.name in changed else ALIKE
            shard.tensors[Entry("buffer", buffer.name, rank=owner)] = rank.state.leaves[buffer.name]
    for parameter in rank.graph.parameters:
        if parameter.name not in cut and parameter.name in first:
            shard.tensors[Entry("parameter", parameter.name)] = rank.state.leaves[parameter.name]
