"""What each rank writes of a checkpoint: what it alone has, and its share of what several have alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from partita.program.instruction import Collective, Combine, Decode, Space, Update
from partita.program.program import WEIGHT, Program
from partita.runtime.alike import alike
from partita.runtime.entry import ALIKE, Entry
from partita.runtime.gather import owners_of
from partita.runtime.generators import random_states
from partita.runtime.owned import Part, Slice
from partita.runtime.rank import Rank
from partita.runtime.shard import Shard
from partita.runtime.state import shaped
from partita.tracing.strips import groups_of, states_of

Losses = list[tuple[int, float, float, float]]


@dataclass(frozen=True, slots=True)
class Copies:
    """Which ranks update a bucket, and whether their weights and their optimizer states are the same."""

    ranks: tuple[int, ...]
    weights: bool
    state: bool


def copies_of(program: Program) -> dict[str, Copies]:
    """For each bucket, from the instructions: who agrees on gradients has all alike, who agrees on weights only these;
    of what a server is ahead with, it alone counts; servers that update the same are copies of each other.

    It holds at the end of a round.
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
        elif isinstance(act, Combine) or (isinstance(act, Decode) and act.into is Space.GRADIENT):
            agreed[act.bucket].add(Space.GRADIENT)
    updating |= {bucket: set(role.ranks) for role in program.roles for bucket in role.serves}
    served = [i.act for role, i in program.instructions() if role.keeps == "server"]
    copied = {act.bucket for act in served if isinstance(act, Update)}
    return {
        name: Copies(tuple(sorted(ranks)), True, True)
        if name in copied
        else Copies(
            tuple(sorted(ranks)), len(ranks) == 1 or (bool(agreed[name]) and Space.PARAMETER in same[name]),
            len(ranks) == 1 or Space.GRADIENT in agreed[name],
        )
        for name, ranks in updating.items()
    }  # fmt: skip


def keepers_of(program: Program) -> dict[tuple[Space, str], tuple[int, ...]]:
    """(space, bucket) -> the ranks that keep it from round to round. Changes count only where they may be in flight;
    what a server has is the weights."""
    found: dict[tuple[Space, str], set[int]] = {}
    for role in program.roles:
        for place in program.kept(role):
            if place[0] is not Space.SERVED and (place[0] is not Space.DELTA or program.drain):
                found.setdefault(place, set()).update(role.ranks)
    return {place: tuple(sorted(ranks)) for place, ranks in found.items()}


def workers_of(program: Program) -> tuple[int, ...]:
    """The ranks that hold a model with its buffers."""
    return tuple(sorted(rank for role in program.roles if role.keeps == "model" for rank in role.ranks))


def held(rank: Rank, round: int, flying: int, losses: Losses) -> Shard:
    """A rank's shard after `round` rounds of its Program, of which the last `flying` are not applied yet."""
    shard = Shard()
    for i, (name, copies) in enumerate(copies_of(rank.program).items()):
        if rank.rank not in copies.ranks:
            continue
        mine = name in rank.state.owned or copies.ranks[i % len(copies.ranks)] == rank.rank
        if mine or not copies.weights:
            _parameters(shard, rank, name, ALIKE if copies.weights else rank.rank)
        if mine or not copies.state:
            _optimizer(shard, rank, name, ALIKE if copies.state else rank.rank)
            _gradients(shard, rank, name, round, flying)
        if mine and i == 0 and name in rank.state.schedule:
            shard.values[Entry("schedule")] = schedule_state(rank.state.schedule[name])
    if rank.rank == min(first for one in copies_of(rank.program).values() for first in one.ranks[:1]):
        _scale(shard, rank, round, flying)
    _kept(shard, rank)
    if rank.role.keeps == "model":
        _leaves(shard, rank)
        _weights(shard, rank, round, flying)
    for detail, state in random_states(rank.device).items():
        shard.tensors[Entry("random", detail=detail, rank=rank.rank)] = state
    if losses:
        shard.tensors[Entry("losses", rank=rank.rank)] = torch.tensor(losses, dtype=torch.float64)
    return shard


def of_piece(kind: str, piece: Part, detail: str = "", rank: int = ALIKE) -> Entry:
    return Entry(kind, piece.parameter, detail, rank, piece.start, piece.stop, isinstance(piece, Slice))


def _parts(rank: Rank, bucket: str) -> list[tuple[Part, torch.Tensor]]:
    """What a rank updates of a bucket: where state is divided, its own part."""
    return list(zip(rank.state.parts(rank.program.bucket[bucket]), rank.state.views[bucket], strict=True))


def _parameters(shard: Shard, rank: Rank, bucket: str, owner: int) -> None:
    """The weights that count: where a server goes ahead of its rank's own worker, the server's."""
    served = rank.state.kept.get((Space.SERVED, bucket))
    parts = _parts(rank, bucket)
    views = [view for _, view in parts] if served is None else shaped(served, [view for _, view in parts])
    for (piece, _), view in zip(parts, views, strict=True):
        shard.tensors[of_piece("parameter", piece, rank=owner)] = view


def _kept(shard: Shard, rank: Rank) -> None:
    """What an agreement keeps, from its first keeper where all have it alike."""
    same = alike(rank.program)
    for (space, bucket), keepers in keepers_of(rank.program).items():
        equal = space in same[bucket]
        if rank.rank != keepers[0] if equal else rank.rank not in keepers:
            continue
        flat, at = rank.state.kept[space, bucket], 0
        if bucket not in rank.state.views:
            shard.tensors[Entry("kept", bucket, str(space), ALIKE if equal else rank.rank)] = flat
            continue
        for piece, view in zip(rank.program.bucket[bucket].pieces, rank.state.whole(bucket), strict=True):
            entry = of_piece("kept", piece, str(space), ALIKE if equal else rank.rank)
            shard.tensors[entry] = flat[at : at + view.numel()].view(view.shape)
            at += view.numel()


def _optimizer(shard: Shard, rank: Rank, bucket: str, owner: int) -> None:
    optimizer, strips = rank.state.optimizer[bucket], rank.state.strips[bucket]
    states = states_of(optimizer, rank.state.views[bucket], strips)
    places = zip(_parts(rank, bucket), states, groups_of(optimizer, strips), strict=True)
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


def schedule_state(schedule: Any) -> dict[str, Any]:
    """Its state without functions, which the task has anyway."""
    return {key: value for key, value in schedule.state_dict().items() if not callable(value)}


def _gradients(shard: Shard, rank: Rank, bucket: str, round: int, flying: int) -> None:
    if not any(isinstance(i.act, Update) and i.act.bucket == bucket and i.act.lag for i in rank.role.instructions):
        return
    for age in range(1, flying + 1):
        views = rank.state.gradient_views[bucket][rank.slot(round - age)]
        for piece, view in zip(rank.program.bucket[bucket].pieces, views, strict=True):
            shard.tensors[of_piece("gradient", piece, str(age))] = _plain(rank, view, round - age)


def _plain(rank: Rank, gradient: torch.Tensor, round: int) -> torch.Tensor:
    """A gradient of a round as any plan knows it: wide, and of a loss that is not scaled."""
    scaler, masters = rank.state.scaler, list(rank.state.master.values())
    return gradient.to(masters[0].dtype) / scaler.at(round) if scaler and masters else gradient


def _scale(shard: Shard, rank: Rank, round: int, flying: int) -> None:
    """The scale of the loss, and those with which gradients in flight were made."""
    scaler = rank.state.scaler
    if rank.program.scaling and scaler:
        used = [scaler.at(round - age) for age in range(flying, 0, -1)]
        shard.values[Entry("scale")] = {"scale": scaler.scale, "good": scaler.good, "flying": used}


def _weights(shard: Shard, rank: Rank, round: int, flying: int) -> None:
    """What gradients in flight are still to be divided by, from the first worker."""
    if WEIGHT in rank.state.gradient and workers_of(rank.program)[0] == rank.rank:
        for age in range(1, flying + 1):
            shard.tensors[Entry("weight", detail=str(age))] = rank.state.gradient[WEIGHT][rank.slot(round - age)]


def _leaves(shard: Shard, rank: Rank) -> None:
    """Buffers, one copy a worker where training changes them; frozen weights from the first worker that has them."""
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
