"""Loading a checkpoint with gradients in flight under a plan with sharded state: they are applied to the whole, which
is then sharded.

For a moment this takes the memory of the whole state; other checkpoints are read part by part.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from partita.checkpoints.restore import Checkpoint, reading, restore
from partita.graph.graph import Graph
from partita.graph.tensor import Tensor
from partita.program.program import Program
from partita.runtime.owned import Slice
from partita.runtime.rules import load_schedule, schedule_state
from partita.runtime.state import State, elements, make_state, rows
from partita.task import Task


def restored(
    saved: Checkpoint, task: Task, graph: Graph, program: Program, rank: int, state: State, device: str
) -> None:
    """Load a checkpoint into the newly made state of a rank. Raises InputError for one that no run wrote."""
    if not (state.owned and saved.manifest.flying):
        with reading(saved.path):
            restore(saved, task, graph, program, rank, state, device)
        state.together()
        return
    plain = replace(program, buckets=tuple(replace(bucket, shares=None) for bucket in program.buckets))
    specs = {p.name: p.tensor.at(1) for p in graph.parameters} | {b.name: b.tensor.at(1) for b in graph.buffers}
    values = {name: _zeros(spec) for name, spec in specs.items()}
    whole = make_state(graph, plain, plain.role_of[rank], task, values, device, rank)
    with reading(saved.path):
        restore(saved, task, graph, plain, rank, whole, device)
    own = {piece.parameter for name in state.owned for piece in program.bucket[name].pieces}
    for name, leaf in state.leaves.items():
        if name not in own:
            leaf.copy_(whole.leaves[name])
    for place, flat in state.kept.items():
        flat.copy_(whole.kept[place])
    for bucket in program.trained:
        if bucket.name in state.views:
            _divide(program, bucket.name, whole, state)
            state.round(bucket.name)
    if state.scaler and whole.scaler:
        state.scaler.scale, state.scaler.good = whole.scaler.scale, whole.scaler.good
        state.scaler.begin()


def _zeros(spec: Tensor) -> torch.Tensor:
    return torch.zeros(spec.shape_at(), dtype=getattr(torch, spec.dtype))


def _mine(part: Any, view: torch.Tensor, theirs: torch.Tensor, value: Any) -> Any:
    """What a rank keeps, as `view`, of a value of the whole weight `theirs`: its part, if it has elements."""
    if isinstance(part, Slice) and isinstance(value, torch.Tensor) and value.shape == theirs.shape:
        return elements(value, part).view(view.shape).clone()
    return value.clone() if isinstance(value, torch.Tensor) else value


def _divide(program: Program, name: str, whole: State, state: State) -> None:
    """Keep this rank's part of a bucket: of its weights and of its optimizer's state."""
    bucket = program.bucket[name]
    for one in (whole, state):
        if name in one.optimizer:
            one.arrange(name, join=False)
    place = {piece.parameter: k for k, piece in enumerate(bucket.pieces)}
    for piece in bucket.pieces if bucket.shares and bucket.shares.whole else ():
        rows(state.leaves[piece.parameter], piece).copy_(rows(whole.leaves[piece.parameter], piece))
    for part, view in zip(state.parts(bucket), state.views[name], strict=True):
        theirs = whole.views[name][place[part.parameter]]
        mine = partial(_mine, part, view, theirs)
        view.copy_(mine(theirs))
        kept = whole.optimizer[name].state.get(theirs, {})
        if kept:
            state.optimizer[name].state[view] = {key: mine(value) for key, value in kept.items()}
    if name not in state.optimizer:
        return
    for group in (one for one in state.optimizer[name].param_groups if one["params"]):
        at = next(k for k, view in enumerate(state.views[name]) if view is group["params"][0])
        theirs = whole.views[name][place[state.parts(bucket)[at].parameter]]
        found = next(g for g in whole.optimizer[name].param_groups if any(p is theirs for p in g["params"]))
        group.update({key: value for key, value in found.items() if key != "params"})
    state.arrange(name)
    if name in state.schedule:
        load_schedule(state.schedule[name], schedule_state(whole.schedule[name]))
