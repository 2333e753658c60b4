"""From a checkpoint to a rank's state, under the plan that wrote it or another: tensors are found by parameter and row.

What has no meaning under the new plan is turned into what has, by these rules.
- Copies of a thing, one a rank (optimizer state of workers that train alone, batch statistics), go to the same ranks
  where the plan has copies on just these; otherwise everybody gets their mean.
- Gradients in flight stay in flight where the lag is the same; otherwise they are applied first, oldest first, as at
  the end of a phase.
- What an agreement keeps (an anchor, an outer momentum) is taken where the new plan keeps it too; where the checkpoint
  has none, it begins anew.
- What codecs held back is divided among those that keep it now, so that as much is still to come.
- Generators go on where they were on the ranks that there were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any

import torch

from partita.errors import InputError
from partita.graph.graph import Graph
from partita.program.instruction import Space
from partita.program.program import WEIGHT, Bucket, Program
from partita.runtime.alike import alike
from partita.runtime.entry import ALIKE, Entry
from partita.runtime.generators import set_random_states
from partita.runtime.holding import Copies, copies_of, keepers_of, workers_of
from partita.runtime.manifest import Manifest, read_manifest
from partita.runtime.owned import Part, Slice
from partita.runtime.shard import Contents
from partita.runtime.state import State, rows, shaped


@dataclass(frozen=True)
class Saved:
    """An opened checkpoint."""

    manifest: Manifest
    contents: Contents

    def flying(self, program: Program) -> int:
        """How many of the gradients in flight stay so under a Program."""
        return self.manifest.flying if program.drain == self.manifest.lag else 0


def open_checkpoint(path: Path) -> Saved:
    """The checkpoint in a directory, whose files were checked before."""
    manifest = read_manifest(path)
    return Saved(manifest, Contents(path / file.name for file in manifest.files))


def restore(saved: Saved, graph: Graph, program: Program, rank: int, state: State, device: str) -> None:
    """Put what the checkpoint holds into the fresh state of a rank. Raises InputError where something is missing."""
    contents, copies = saved.contents, copies_of(program)
    for bucket in (b for b in program.trained if b.name in state.views):
        _weights(contents, bucket, state, copies[bucket.name], rank)
        _optimizer(contents, bucket, state, copies[bucket.name], rank)
    _scale(saved, program, state)
    _kept(contents, program, rank, state)
    _leaves(contents, graph, program, rank, state)
    if saved.flying(program):
        _refill(contents, program, state, saved.manifest.flying)
    elif saved.manifest.flying:
        _apply(contents, graph, program, state, saved.manifest.flying)
    for name, one in copies.items():
        if rank not in one.ranks and name in state.optimizer:
            state.optimizer[name].state.clear()
    if rank in contents.ranks("random", detail="torch"):
        found = {d: contents.tensor(Entry("random", detail=d, rank=rank)) for d in contents.details("random", "")}
        set_random_states(found, device)


def lost(saved: Saved, program: Program) -> list[str]:
    """In sentences, what a Program makes of a checkpoint that has no place for all of it."""
    manifest, contents, found = saved.manifest, saved.contents, []
    if manifest.lag > 1 and manifest.flying and not saved.flying(program):
        found.append(f"{manifest.flying} gradients in flight are applied first")
    if any(entry.detail == Space.DELTA for entry in contents.entries("kept")) and not saved.flying(program):
        found.append("changes of weights on their way to the others are left out")
    copies = list(copies_of(program).values())
    pieces = [bucket.pieces[0].parameter for bucket in program.trained]
    own = {r for name in pieces for d in contents.details("state", name) for r in contents.ranks("state", name, d)}
    kept = set() if all(c.state for c in copies) else {r for c in copies for r in c.ranks}
    if own - {ALIKE} and own != kept:
        found.append(f"the optimizer's state is the mean of {len(own)} workers'")
    buffers = {r for kind, name in contents.names() if kind == "buffer" for r in contents.ranks(kind, name)} - {ALIKE}
    if buffers and buffers != set(workers_of(program)):
        found.append(f"batch statistics are the mean of {len(buffers)} workers'")
    return found


def _read(
    contents: Contents, kind: str, name: str, detail: str, rank: int, wanted: Sequence[int],
    read: Callable[[int], torch.Tensor],
) -> torch.Tensor | None:  # fmt: skip
    """The copy for `rank` where copies belong to the `wanted` ranks (none: all are to have the same)."""
    owners = contents.ranks(kind, name, detail)
    if not owners:
        return None
    if owners == (ALIKE,) or owners == tuple(wanted):
        return read(ALIKE if owners == (ALIKE,) else rank)
    first, *others = [read(owner) for owner in owners]
    return reduce(torch.add, others, first) / len(owners) if first.is_floating_point() else first


def _rows(contents: Contents, kind: str, detail: str, piece: Part, view: torch.Tensor, owner: int) -> torch.Tensor:
    """What a part of a parameter means, in the shape of its `view`, put together from what the checkpoint has."""
    parts = contents.parts(kind, piece.parameter, detail, owner)
    if not isinstance(piece, Slice) and piece.stop < 0 and len(parts) == 1 and not parts[0].flat:
        return contents.tensor(parts[0])
    start, stop = _extent(piece.start, piece.stop, isinstance(piece, Slice), view)
    found = []
    for part in parts:
        tensor = contents.tensor(part)
        first, last = _extent(part.start, part.stop, part.flat, tensor)
        low, high = max(start, first), min(stop, last)
        if low < high:
            found.append((low, tensor.reshape(-1)[low - first : high - first]))
    if sum(len(tensor) for _, tensor in found) != stop - start:
        raise InputError(f"the checkpoint lacks elements {start} to {stop} of {piece.parameter}; take another one")
    whole = [tensor for _, tensor in sorted(found, key=lambda one: one[0])]
    return torch.cat(whole).view(view.shape) if whole else view.clone()


def _extent(start: int, stop: int, flat: bool, tensor: torch.Tensor) -> tuple[int, int]:
    """The elements of a parameter, from and to, that `tensor` holds as rows (stop -1: all) or as a flat run."""
    if flat or stop < 0:
        return start, start + tensor.numel()
    row = tensor.numel() // max(stop - start, 1)
    return start * row, stop * row


def _weights(contents: Contents, bucket: Bucket, state: State, copies: Copies, rank: int) -> None:
    wanted = () if copies.weights or rank not in copies.ranks else copies.ranks
    held: list[tuple[Part, torch.Tensor]] = list(zip(state.parts(bucket), state.views[bucket.name], strict=True))
    if bucket.shares and bucket.keeps(Space.PARAMETER):
        masters = held if bucket.name in state.master else []
        held = masters + [(piece, rows(state.leaves[piece.parameter], piece)) for piece in bucket.pieces]
    for piece, view in held:
        found = _read(
            contents, "parameter", piece.parameter, "", rank, wanted,
            partial(_rows, contents, "parameter", "", piece, view),
        )  # fmt: skip
        if found is None:
            raise InputError(f"the checkpoint lacks the weights of {piece.parameter}; take another one")
        view.copy_(found)
    state.round(bucket.name)


def _optimizer(contents: Contents, bucket: Bucket, state: State, copies: Copies, rank: int) -> None:
    if bucket.name not in state.optimizer:
        return
    optimizer, parts = state.optimizer[bucket.name], state.parts(bucket)
    state.arrange(bucket.name, join=False)
    wanted = () if copies.state or rank not in copies.ranks else copies.ranks
    for piece, view in zip(parts, state.views[bucket.name], strict=True):
        own: dict[str, Any] = {}
        for key in contents.details("state", piece.parameter):
            found = _read(
                contents, "state", piece.parameter, key, rank, wanted,
                partial(_rows, contents, "state", key, piece, view),
            )  # fmt: skip
            own[key] = None if found is None else found.clone().to(view.device)
        for key in contents.details("factor", piece.parameter):
            own[key] = _factor(contents, piece, key, rank, wanted)
        if own:
            optimizer.state[view] = own
    for group in optimizer.param_groups:
        index = next(i for i, view in enumerate(state.views[bucket.name]) if view is group["params"][0])
        group.update(_value(contents, "settings", parts[index], "", rank, wanted) or {})
    state.arrange(bucket.name)
    if bucket.name in state.schedule and (kept := contents.values.get(Entry("schedule"))):
        state.schedule[bucket.name].load_state_dict(kept)


def _scale(saved: Saved, program: Program, state: State) -> None:
    kept, flying = saved.contents.values.get(Entry("scale")), saved.flying(program)
    if state.scaler and program.scaling and kept:
        state.scaler.scale, state.scaler.good = kept["scale"], kept["good"]
    if state.scaler:
        used = kept["flying"] if kept and program.scaling else [state.scaler.scale] * flying
        state.scaler.begin(used if flying else ())


def _kept(contents: Contents, program: Program, rank: int, state: State) -> None:
    same, keepers = alike(program), keepers_of(program)
    for (space, bucket), flat in state.kept.items():
        if space is Space.ANCHOR:
            flat.copy_(state.parameter[bucket])
        wanted = () if space in same[bucket] else keepers.get((space, bucket), ())
        at, pieces = 0, program.bucket[bucket].pieces
        if not pieces and contents.ranks("kept", bucket, str(space)) == tuple(wanted):
            flat.copy_(contents.tensor(Entry("kept", bucket, str(space), rank)))
        for piece, view in zip(pieces, state.whole(bucket) if pieces else (), strict=True):
            found = _read(
                contents, "kept", piece.parameter, str(space), rank, wanted,
                partial(_rows, contents, "kept", str(space), piece, view),
            )  # fmt: skip
            if found is not None:
                there = contents.ranks("kept", piece.parameter, str(space))
                times = len(there) / len(wanted) if space is Space.RESIDUAL and wanted else 1.0
                flat[at : at + view.numel()].view(view.shape).copy_(found * times if times != 1.0 else found)
            at += view.numel()


def _factor(contents: Contents, piece: Part, key: str, rank: int, wanted: Sequence[int]) -> Any:
    """State in another shape than the rows', from the first piece that overlaps; where ranks differ, their mean."""
    owners = contents.ranks("factor", piece.parameter, key)
    if not contents.has_tensor(_first(contents, "factor", piece, key, owners[0])):
        return _value(contents, "factor", piece, key, rank, wanted)
    found = _read(
        contents, "factor", piece.parameter, key, rank, wanted,
        lambda owner: contents.tensor(_first(contents, "factor", piece, key, owner)),
    )  # fmt: skip
    return None if found is None else found.clone()


def _first(contents: Contents, kind: str, piece: Part, key: str, owner: int) -> Entry:
    parts = contents.parts(kind, piece.parameter, key, owner)
    if any(part.flat is not isinstance(piece, Slice) for part in parts):
        return parts[0]
    return next((part for part in parts if part.stop < 0 or part.stop > piece.start), parts[-1])


def _value(contents: Contents, kind: str, piece: Part, key: str, rank: int, wanted: Sequence[int]) -> Any:
    owners = contents.ranks(kind, piece.parameter, key)
    if not owners:
        return None
    owner = rank if owners == tuple(wanted) else owners[0]
    return contents.values[_first(contents, kind, piece, key, owner)]


def _leaves(contents: Contents, graph: Graph, program: Program, rank: int, state: State) -> None:
    changed, workers = {name for name, _ in graph.mutations}, workers_of(program)
    cut = {piece.parameter for bucket in program.trained for piece in bucket.pieces}
    names = [("buffer", b.name) for b in graph.buffers if b.name in state.leaves]
    names += [("parameter", p.name) for p in graph.parameters if p.name not in cut and p.name in state.leaves]
    for kind, name in names:
        found = _read(
            contents, kind, name, "", rank, workers if name in changed and rank in workers else (),
            partial(contents.whole, kind, name),
        )  # fmt: skip
        if found is not None:
            state.leaves[name].copy_(found)


def _gradient(contents: Contents, bucket: Bucket, state: State, age: int) -> list[torch.Tensor]:
    if bucket.name == WEIGHT:
        return [contents.tensor(Entry("weight", detail=str(age)))]
    return [
        _rows(contents, "gradient", str(age), piece, view, ALIKE)
        for piece, view in zip(state.parts(bucket), state.views[bucket.name], strict=True)
    ]


def _refill(contents: Contents, program: Program, state: State, flying: int) -> None:
    """Gradients into the slots that the first `flying` rounds would have filled."""
    if not contents.entries("gradient"):
        return
    for name, slots in state.gradient_views.items():
        for age in range(1, flying + 1):
            views = slots[(flying - age) % program.slots]
            scale = state.scaler.at(flying - age) if state.scaler and name in state.views else 1.0
            for view, found in zip(views, _gradient(contents, program.bucket[name], state, age), strict=True):
                view.copy_(found * scale if scale != 1.0 else found)


def _apply(contents: Contents, graph: Graph, program: Program, state: State, flying: int) -> None:
    """Every rank takes the steps for every bucket, so that workers and servers begin with the same weights. Changes
    of weights in flight (EX-01) are left out: a worker's own weights have its part of them."""
    if not contents.entries("gradient"):
        return
    for age in range(flying, 0, -1):
        found = {
            bucket.name: _gradient(contents, bucket, state, age)
            for bucket in program.trained
            if bucket.name in state.views
        }
        names = sorted({p.parameter for b in program.trained if b.name not in state.views for p in b.pieces})
        others = [contents.tensor(one) for name in names for one in contents.parts("gradient", name, str(age), ALIKE)]
        if graph.weight is not None:
            weight = contents.tensor(Entry("weight", detail=str(age)))[0]
            found = {name: [gradient / weight for gradient in bucket] for name, bucket in found.items()}
            others = [gradient / weight for gradient in others]
        if state.scaler and not all(g.isfinite().all() for bucket in (*found.values(), others) for g in bucket):
            continue
        if graph.clip_norm:
            found = _clipped(found, others, graph.clip_norm)
        for name, gradients in found.items():
            wide = [gradient.to(view) for gradient, view in zip(gradients, state.views[name], strict=True)]
            flat = torch.cat([gradient.reshape(-1) for gradient in wide])
            state.step(name, shaped(flat, state.stepped(name)), program)
            state.round(name)
            if name in state.schedule:
                state.schedule[name].step()


def _clipped(
    gradients: dict[str, list[torch.Tensor]], others: list[torch.Tensor], norm: float
) -> dict[str, list[torch.Tensor]]:
    """The norm bucket by bucket, as the instruction Clip takes it, for the same bits, and of `others`, which other
    stages hold; what was read stays as it is."""
    flats = [
        torch.cat([gradient.reshape(-1) for gradient in bucket]) for bucket in (*gradients.values(), others) if bucket
    ]
    total = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(flat) for flat in flats]))
    factor = torch.clamp(norm / (total + 1e-6), max=1.0)
    return {name: [gradient * factor for gradient in bucket] for name, bucket in gradients.items()}
