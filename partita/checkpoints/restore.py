"""Loading a checkpoint into the state of a rank, under the plan that wrote it or under another one.

Tensors are stored by parameter and rows, so a plan with other buckets, stages or shards finds them all the same. State
that the new plan does not have in the same form is converted:

- State with one copy for each rank (the optimizer state of workers that train alone, batch statistics) goes to the same
  ranks if the new plan has copies on exactly these; otherwise every rank gets the mean of the copies.
- Gradients in flight (computed, not yet applied) stay in flight if the new plan has the same lag; otherwise they are
  applied first, oldest first, as at the end of a phase.
- Tensors that an agreement keeps (an anchor, an outer momentum) are loaded if the new plan keeps them too; if the
  checkpoint has none, they are initialised as in a new run.
- Residuals of codecs with error feedback, what codings of differences have said, and momentum ahead of a codec, are
  divided among the ranks that keep one now, so that their sum is preserved.
- What a server has of contributions (their number, those that have made no step yet, squares) is loaded where one
  serves in the same way.
- Settings of the optimizer go on, but for those that the task itself has changed (`settings`).
- Random generators continue on ranks that existed before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import torch

from partita.checkpoints.contributions import left_behind, load_contributions
from partita.checkpoints.entry import ALIKE, Entry
from partita.checkpoints.holding import Copies, copies_of, keepers_of
from partita.checkpoints.ledgers import load_ledger
from partita.checkpoints.lookup import copy_for, factor_of, rows_of, value_of
from partita.checkpoints.manifest import Manifest, flies_of, read_manifest
from partita.checkpoints.settings import Change, changed, check_settings
from partita.checkpoints.shard import Contents
from partita.errors import InputError, first_line
from partita.graph.graph import Graph
from partita.plan.rule import momentum_ahead
from partita.program.layout import WEIGHT, Bucket
from partita.program.program import Program
from partita.program.space import Space
from partita.runtime.alike import alike
from partita.runtime.bounds import bounding
from partita.runtime.gather import holders_of
from partita.runtime.generators import set_random_states
from partita.runtime.owned import Part
from partita.runtime.rules import load_schedule
from partita.runtime.scaler import norm_of
from partita.runtime.state import State, counted, rows, shaped
from partita.task import Task


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint, and its directory."""

    path: Path
    manifest: Manifest
    contents: Contents

    def flying(self, program: Program) -> int:
        """How many gradients in flight stay in flight under a Program: all of them, or 0 if its lag is another one, or
        something else flies there."""
        same = program.drain == self.manifest.lag and self.manifest.flies in ("", flies_of(program))
        return self.manifest.flying if same else 0


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in the directory `path`, whose files must have been checked before (`manifest`)."""
    manifest = read_manifest(path)
    return Checkpoint(path, manifest, Contents(path / file.name for file in manifest.files))


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """A context that takes what the checkpoint in `path` holds for what a run writes. Raises InputError where a value
    turns out to be of another kind or shape: its digests say that nothing was damaged, not who wrote it."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError, RuntimeError) as error:
        raise InputError(
            f"{path} holds something else than a run writes there ({first_line(error)}); take another checkpoint"
        ) from error


def restore(
    saved: Checkpoint, task: Task, graph: Graph, program: Program, rank: int, state: State, device: str
) -> None:  # fmt: skip
    """Load a checkpoint into the newly made `state` of `rank`. Raises InputError if it lacks weights or parts of
    state."""
    contents, copies = saved.contents, copies_of(program)
    tied = {name: one.own for name, one in copies.items() if _go_on(contents, program.bucket[name], one)}
    changes = changes_since(saved, task, graph, program)
    for bucket in (b for b in program.trained if b.name in state.views):
        _weights(contents, bucket, state, copies[bucket.name], rank)
        _optimizer(contents, bucket, state, copies[bucket.name], rank, changes)
    _scale(saved, program, state)
    if saved.manifest.flying and not saved.flying(program):
        _apply(contents, graph, program, state, saved.manifest.flying)
    _kept(contents, program, rank, state, [name for name, one in copies.items() if one.own and name not in tied])
    _leaves(contents, graph, program, rank, state)
    load_contributions(contents, program, rank, state, saved.manifest.step)
    load_ledger(contents, program, rank, state, tied)
    if saved.flying(program):
        _refill(contents, program, state, saved.manifest.flying)
    for (name, _), given in state.outbox.items():  # what workers will have read when they contribute first
        given.copy_(state.kept.get((Space.SERVED, name), state.parameter[name]))
    for name, one in copies.items():
        if rank not in one.steppers and name in state.optimizer:
            state.optimizer[name].state.clear()
    if rank in contents.ranks("random", detail="torch"):
        own = (d for d in contents.details("random", "") if rank in contents.ranks("random", detail=d))
        set_random_states({d: contents.tensor(Entry("random", detail=d, rank=rank)) for d in own}, device)


def changes_since(saved: Checkpoint, task: Task, graph: Graph, program: Program) -> dict[str, list[Change]]:
    """Weight -> the settings of its optimizer that the task has changed since the run of a checkpoint began."""
    return changed(saved.manifest.settings, saved.contents, task, graph, program.update)


def lost(saved: Checkpoint, graph: Graph, program: Program) -> list[str]:
    """What is converted or left out if a Program continues from a checkpoint: one sentence each, for the user."""
    manifest, contents, found = saved.manifest, saved.contents, []
    if manifest.lag > 1 and manifest.flying and not saved.flying(program):
        found.append(f"{manifest.flying} gradients in flight are applied first")
    if any(entry.detail == Space.DELTA for entry in contents.entries("kept")) and not saved.flying(program):
        found.append("changes of weights on their way to the others are left out")
    if left_behind(contents, program):
        found.append("contributions that have not made a step yet are left out")
    copies = list(copies_of(program).values())
    pieces = [bucket.pieces[0].parameter for bucket in program.trained]
    tied = {r for name in pieces for r in contents.ranks("own", name)}
    if tied and any(set(one.own) != tied for one in copies):
        found.append("what workers have beside their centre is left out: all begin there")
    own = {r for name in pieces for d in contents.details("state", name) for r in contents.ranks("state", name, d)}
    kept = set() if all(c.state for c in copies) else {r for c in copies for r in c.steppers}
    if own - {ALIKE} and own != kept:
        found.append(f"the optimizer's state is the mean of {len(own)} workers'")
    holders = holders_of(program, graph)
    wrote = {name: contents.ranks(kind, name) for kind, name in contents.names() if kind == "buffer"}
    means = [ranks for name, ranks in wrote.items() if ranks not in ((ALIKE,), holders.get(name, ranks))]
    if means:
        found.append(f"batch statistics are the mean of {max(map(len, means))} workers'")
    return found


def _go_on(contents: Contents, bucket: Bucket, copies: Copies) -> bool:
    """Whether workers that are tied to a centre have weights of their own in a checkpoint."""
    return bool(copies.own) and contents.ranks("own", bucket.pieces[0].parameter) == copies.own


def _weights(contents: Contents, bucket: Bucket, state: State, copies: Copies, rank: int) -> None:
    wanted = () if copies.weights or rank not in copies.ranks else copies.ranks
    held: list[tuple[Part, torch.Tensor]] = list(zip(state.parts(bucket), state.views[bucket.name], strict=True))
    if bucket.shares and bucket.keeps(Space.PARAMETER):
        masters = held if bucket.name in state.master else []
        held = masters + [(piece, rows(state.leaves[piece.parameter], piece)) for piece in bucket.pieces]
    for piece, view in held:
        own = rank in copies.own and _go_on(contents, bucket, copies)
        kind, those = ("own", copies.own) if own else ("parameter", wanted)
        found = copy_for(
            contents, kind, piece.parameter, "", rank, those, partial(rows_of, contents, kind, "", piece, view)
        )
        if found is None:
            raise InputError(f"the checkpoint lacks the weights of {piece.parameter}; take another one")
        view.copy_(found)
    state.round(bucket.name)


def _optimizer(
    contents: Contents, bucket: Bucket, state: State, copies: Copies, rank: int, changes: Mapping[str, list[Change]]
) -> None:  # fmt: skip
    if bucket.name not in state.optimizer:
        return
    optimizer, parts = state.optimizer[bucket.name], state.parts(bucket)
    state.arrange(bucket.name, join=False)
    wanted = () if copies.state or rank not in copies.steppers else copies.steppers
    for piece, view in zip(parts, state.views[bucket.name], strict=True):
        own: dict[str, Any] = {}
        for key in contents.details("state", piece.parameter):
            found = copy_for(
                contents, "state", piece.parameter, key, rank, wanted,
                partial(rows_of, contents, "state", key, piece, view),
            )  # fmt: skip
            own[key] = None if found is None else found.clone().to(view.device)
        for key in contents.details("factor", piece.parameter):
            own[key] = factor_of(contents, piece, key, rank, wanted)
        if own:
            optimizer.state[view] = own
    for group in (one for one in optimizer.param_groups if one["params"]):
        index = next(i for i, view in enumerate(state.views[bucket.name]) if view is group["params"][0])
        own = {one.name: one.now for one in changes.get(parts[index].parameter, ()) if not one.moved}
        if kept := value_of(contents, "settings", parts[index], "", rank, wanted):
            group.update(check_settings(kept, group))
        group.update(own)
    state.arrange(bucket.name)
    if bucket.name in state.schedule and (at := contents.values.get(Entry("schedule"))):
        load_schedule(state.schedule[bucket.name], at)


def _scale(saved: Checkpoint, program: Program, state: State) -> None:
    kept, flying = saved.contents.values.get(Entry("scale")), saved.flying(program)
    if state.scaler and program.scaling and kept:
        state.scaler.scale, state.scaler.good = kept["scale"], kept["good"]
    if state.scaler:
        used = kept["flying"] if kept and program.scaling else [state.scaler.scale] * flying
        state.scaler.begin(used if flying else ())


def _kept(contents: Contents, program: Program, rank: int, state: State, anew: Sequence[str]) -> None:
    """What an agreement keeps, but for buckets whose workers begin `anew` at their centre."""
    same, keepers = alike(program), keepers_of(program)
    summed = {Space.RESIDUAL, Space.SAID, *((Space.VELOCITY,) if momentum_ahead(program.update)[0] else ())}
    for (space, bucket), flat in state.kept.items():
        if space in (Space.ANCHOR, Space.SHARED):
            flat.copy_(state.parameter[bucket])
        if bucket in anew:
            continue
        wanted = () if space in same[bucket] else keepers.get((space, bucket), ())
        at, pieces = 0, program.bucket[bucket].pieces
        if not pieces and contents.ranks("kept", bucket, str(space)) == tuple(wanted):
            flat.copy_(contents.tensor(Entry("kept", bucket, str(space), rank)))
        for piece, view in zip(pieces, state.whole(bucket) if pieces else (), strict=True):
            found = copy_for(
                contents, "kept", piece.parameter, str(space), rank, wanted,
                partial(rows_of, contents, "kept", str(space), piece, view),
            )  # fmt: skip
            if found is not None:
                there = contents.ranks("kept", piece.parameter, str(space))
                times = len(there) / len(wanted) if space in summed and wanted else 1.0
                flat[at : at + view.numel()].view(view.shape).copy_(found * times if times != 1.0 else found)
            at += view.numel()


def _leaves(contents: Contents, graph: Graph, program: Program, rank: int, state: State) -> None:
    changed, holders = {name for name, _ in graph.mutations}, holders_of(program, graph)
    cut = {piece.parameter for bucket in program.trained for piece in bucket.pieces}
    names = [("buffer", b.name) for b in graph.buffers if b.name in state.leaves]
    names += [("parameter", p.name) for p in graph.parameters if p.name not in cut and p.name in state.leaves]
    for kind, name in names:
        own = holders.get(name, ()) if name in changed else ()
        wanted = own if rank in own else ()  # a server's are no replica's
        found = copy_for(contents, kind, name, "", rank, wanted, partial(contents.whole, kind, name))
        if found is not None:
            state.leaves[name].copy_(found)


def _gradient(contents: Contents, bucket: Bucket, state: State, age: int) -> list[torch.Tensor]:
    if bucket.name == WEIGHT:
        return [contents.tensor(Entry("weight", detail=str(age)))]
    return [
        rows_of(contents, "gradient", str(age), piece, view, ALIKE)
        for piece, view in zip(state.parts(bucket), state.views[bucket.name], strict=True)
    ]


def _refill(contents: Contents, program: Program, state: State, flying: int) -> None:
    """Put gradients in flight into the slots of the first `flying` rounds, as if these had computed them."""
    if not contents.entries("gradient"):
        return
    for name, slots in state.gradient_views.items():
        for age in range(1, flying + 1):
            views = slots[(flying - age) % program.slots]
            scale = state.scaler.at(flying - age) if state.scaler and name in state.views else 1.0
            for view, found in zip(views, _gradient(contents, program.bucket[name], state, age), strict=True):
                view.copy_(found * scale if scale != 1.0 else found)


def _apply(contents: Contents, graph: Graph, program: Program, state: State, flying: int) -> None:
    """Apply gradients in flight, oldest first, to every bucket on every rank, so that workers and servers begin with
    the same weights. Changes of weights in flight (EX-01) are dropped: a worker's own weights contain its part of them.
    """
    if not contents.entries("gradient"):
        return
    for age in range(flying, 0, -1):
        found = {
            bucket.name: _gradient(contents, bucket, state, age)
            for bucket in program.trained
            if bucket.name in state.views
        }
        scaled = state.scaler or Entry("scale") in contents.values
        weight = None if graph.weight is None else counted(contents.tensor(Entry("weight", detail=str(age)))[0])
        if weight is not None:
            found = {name: [gradient / weight for gradient in bucket] for name, bucket in found.items()}
        if scaled or graph.clip_norm:
            total = norm_of(_everything(contents, graph, program, age, weight))
            if scaled and not total.isfinite():
                continue
            factor = bounding(total, graph.clip_norm or inf)
            found = {name: [gradient * factor for gradient in bucket] for name, bucket in found.items()}
        for name, gradients in found.items():
            wide = [gradient.to(view) for gradient, view in zip(gradients, state.views[name], strict=True)]
            flat = torch.cat([gradient.reshape(-1) for gradient in wide])
            state.step(name, shaped(flat, state.stepped(name)), program)
            state.round(name)
            if name in state.schedule:
                state.schedule[name].step()


def _everything(
    contents: Contents, graph: Graph, program: Program, age: int, weight: torch.Tensor | None
) -> Iterator[torch.Tensor]:
    """All buckets' gradients, one after the other, whichever of them are held here, over the `weight` if there is one:
    every rank gets the same bits of their norm, those that the instruction Clip gets, which sums bucket by bucket."""
    shapes = {p.name: torch.empty(p.tensor.shape_at(), device="meta") for p in graph.trainable}
    for bucket in program.trained:
        views = [(piece, rows(shapes[piece.parameter], piece)) for piece in bucket.pieces]
        parts = [rows_of(contents, "gradient", str(age), piece, view, ALIKE).reshape(-1) for piece, view in views]
        yield torch.cat(parts) if weight is None else torch.cat(parts) / weight
