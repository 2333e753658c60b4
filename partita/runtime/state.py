"""What one rank holds: parameters and gradients as dense buckets, buffers, inboxes, optimizers.

Every bucket's parameters are views of one flat tensor, so that a bucket is sent, received, reduced and updated in
place, without copies:

    parameter/b0   [ fc2.weight | fc2.bias | fc1.weight rows 256..512 ]     views: the module's own parameters
    gradient/b0@0  [ ...................................................]   one for each slot
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from partita.graph.graph import Constant, Graph
from partita.plan.rule import ruled
from partita.program.instruction import Apply, Snapshot, Update
from partita.program.layout import MASS, Bucket, Piece
from partita.program.program import Program, Role
from partita.program.space import KEPT, Space
from partita.program.versions import Ledger
from partita.runtime.flats import Views, flats_of, wholes_of
from partita.runtime.neutral import left_out
from partita.runtime.owned import Owned, Part, Slice, owned_of
from partita.runtime.rules import optimizer_of, schedule_of, step_at_rate, whole_groups
from partita.runtime.scaler import Scaler
from partita.task import Task
from partita.tracing.update_units import UpdateUnit, apart, joined, parted


@dataclass
class State:
    """The tensors of one rank. Mutable, private to one rank of one run.

    `leaves` are parameters, buffers and constants by name. `parameter` and `gradient` are the flat tensor of each
    bucket (gradients: one for each slot); `views` and `gradient_views` are its pieces in their own shapes. `inbox` is
    what came from a peer, `outbox` what a peer is to get, `kept` what an agreement keeps of a bucket (by Space),
    `coded` codings by slot, with a row for each rank whose coding it holds.

    An `optimizer` updates the `views` of a bucket: the rank's own parts if state is sharded (`owned`); parts of the
    `master` if weights are in half precision; tensors of Space.SERVED if the rank serves beside its worker. It is given
    them as `units`, which join pieces of the buckets in `joining`. `scaler` unscales gradients; every rank has one if
    the loss is scaled. `unsure`: samples may leave out weights, and the optimizer then leaves them out as well.

    `ledger` records merges; `squares` and `clocks` (contributions so far, their mean) are state of corrections for
    staleness; `accepted` are (round, share of a minibatch) of what a bucket's gradient is the mean of so far.
    """

    leaves: dict[str, torch.Tensor]
    parameter: dict[str, torch.Tensor]
    gradient: dict[str, list[torch.Tensor]]
    views: dict[str, Views]
    gradient_views: dict[str, list[Views]]
    inbox: dict[tuple[str, int], torch.Tensor]
    outbox: dict[tuple[str, int], torch.Tensor]
    ledger: Ledger
    optimizer: dict[str, torch.optim.Optimizer]
    schedule: dict[str, Any]
    kept: dict[tuple[Space, str], torch.Tensor]
    coded: dict[tuple[str, int], torch.Tensor] = field(default_factory=dict)
    squares: dict[str, torch.Tensor] = field(default_factory=dict)
    accepted: dict[str, tuple[int, float]] = field(default_factory=dict)
    clocks: dict[tuple[str, int], tuple[int, torch.Tensor]] = field(default_factory=dict)
    owned: dict[str, Owned] = field(default_factory=dict)
    master: dict[str, torch.Tensor] = field(default_factory=dict)
    scaler: Scaler | None = None
    units: dict[str, tuple[UpdateUnit, ...]] = field(default_factory=dict)
    joining: frozenset[str] = frozenset()
    unsure: bool = False

    @property
    def layout(self) -> dict[str, list[torch.Size]]:
        """Shapes of every bucket's pieces: states with the same layout can take each other's place."""
        return {name: [view.shape for view in pieces] for name, pieces in self.views.items()}

    def flat(self, space: Space, bucket: str, slot: int) -> torch.Tensor:
        """The flat tensor of a bucket in a space: weights, the gradient of a slot, or a kept tensor."""
        if space in KEPT:
            return self.kept[space, bucket]
        return self.parameter[bucket] if space is Space.PARAMETER else self.gradient[bucket][slot]

    def mine(self, space: Space, bucket: str, slot: int) -> torch.Tensor:
        """The part of a bucket that this rank updates, as a flat tensor."""
        if bucket not in self.owned:
            return self.flat(space, bucket, slot)
        own = self.owned[bucket]
        return own.parameter if space is Space.PARAMETER else own.gradient[slot]

    def round(self, bucket: str) -> None:
        """Round the weights of a bucket from this rank's masters, if it has any."""
        if bucket in self.master:
            self.mine(Space.PARAMETER, bucket, 0).copy_(self.master[bucket])

    def together(self) -> None:
        """At the end of a run with servers beside workers: make the served weights and the worker's weights those of
        `views`."""
        for (space, bucket), flat in self.kept.items():
            if space is Space.SERVED:
                now = torch.cat([view.reshape(-1) for view in self.views[bucket]])
                flat.copy_(now)
                self.parameter[bucket].copy_(now)

    def my_gradients(self, bucket: str, slot: int) -> Views:
        """The gradients of a bucket, shaped as its update units."""
        return shaped(self.mine(Space.GRADIENT, bucket, slot), self.stepped(bucket))

    def stepped(self, bucket: str) -> Views:
        """The tensors of a bucket that the optimizer is given."""
        return [unit.tensor for unit in self.units[bucket]]

    def step(self, bucket: str, gradients: Views, program: Program, at: int = -1, share: float = 1.0) -> None:
        """One step of a bucket's optimizer, with one gradient for each update unit; see `step_at_rate`."""
        given = left_out(gradients) if self.unsure else gradients
        stepped = partial(step_at_rate, self.optimizer[bucket], program.update, at, share)
        step_units(self.units[bucket], given, stepped)

    def arrange(self, bucket: str, *, join: bool = True) -> None:
        """Let the optimizer update joined pieces where it may, or (`join` False) each by itself."""
        own, views = self.optimizer[bucket], self.views[bucket]
        arranged = joined if join and bucket in self.joining else parted
        self.units[bucket] = arranged(own, views, self.units.get(bucket) or apart(views))

    def parts(self, bucket: Bucket) -> tuple[Part, ...]:
        """The parts of parameters that `views` are."""
        return self.owned[bucket.name].parts if bucket.name in self.owned else bucket.pieces

    def whole(self, bucket: str) -> Views:
        """Tensors in the shapes of a bucket's pieces, also if `views` are of parts of these."""
        return self.gradient_views[bucket][0] if bucket in self.owned else self.views[bucket]

    def inbox_of(self, bucket: str, peer: int) -> torch.Tensor:
        """The tensor that `peer`'s messages of a bucket are received into; made when it is first asked for, with the
        current weights."""
        if (bucket, peer) not in self.inbox:
            self.inbox[bucket, peer] = self.parameter[bucket].clone()
        return self.inbox[bucket, peer]


def step_units(units: Sequence[UpdateUnit], gradients: Sequence[torch.Tensor | None], step: Callable[[], Any]) -> None:
    """One `step` of an optimizer, with one gradient for each of its update units."""
    for unit, gradient in zip(units, gradients, strict=True):
        unit.tensor.grad = gradient
    step()
    for unit in units:
        unit.tensor.grad = None


def make_state(
    graph: Graph, program: Program, role: Role, task: Task, values: dict[str, torch.Tensor], device: str, rank: int
) -> State:
    """A new state, with copies of `values` (by the module's own names) for the parameters and buffers of the role's
    stages; of all stages if it runs the whole graph or none of it."""
    held = [program.graph_of(stage, graph) for stage in program.stages_of(role) or (-1,)]
    shapes = {p.name: tuple(values[p.name].shape) for part in held for p in part.parameters}
    buckets = tuple(b for b in program.buckets if all(piece.parameter in shapes for piece in b.pieces))
    trained = tuple(bucket for bucket in buckets if bucket.pieces)
    flats = flats_of(buckets, role.packed, program.slots, shapes, device)
    parameter, gradient = flats.parameter, flats.gradient
    found = {b.name: owned_of(b, rank, shapes, parameter[b.name], gradient.get(b.name, [])) for b in trained}
    owned = {name: own for name, own in found.items() if own is not None}
    views, master = _first_weights(trained, flats.pieces, owned, values, device)
    leaves = _leaves(held, wholes_of(trained, shapes, flats.pieces), values, device)
    if MASS in parameter:
        parameter[MASS].fill_(1.0)
    kept = {place: _begun(place[0], program.bucket[place[1]], parameter[place[1]]) for place in program.kept(role)}
    beside = {act.bucket for act in role.acts(Apply) if act.into is Space.SERVED and not act.delta}
    views |= {name: shaped(kept[Space.SERVED, name], views[name]) for name in beside}
    optimizer = _optimizers(graph, program, task, views, owned)
    schedule = {name: schedule_of(task, one) for name, one in optimizer.items()} if task.schedule else {}
    given = [act for act in role.acts(Snapshot) if act.to != rank]
    outbox = {(act.bucket, act.to): parameter[act.bucket].clone() for act in given}
    unsure = graph.rung == "opaque"
    for act in (act for act in role.acts(Apply) if act.bucket in gradient and unsure):
        gradient[act.bucket][0].fill_(-0.0)  # what servers add to, see `neutral`
    lying = {act.bucket for act in role.acts(Update) if act.part}  # gradients where backward left them
    joinable = ruled(graph, program.update).optimizer.joins and not unsure
    made = State(
        leaves, parameter, gradient, views, flats.gradient_pieces, {}, outbox, Ledger(rank), optimizer, schedule, kept,
        owned=owned, master=master, scaler=Scaler(program.scaling) if master or program.scaling else None,
        joining=frozenset(optimizer) - lying if joinable else frozenset(), unsure=unsure,
    )  # fmt: skip
    for name in optimizer:
        made.arrange(name)
    return made


def _first_weights(
    trained: Sequence[Bucket], pieces: dict[str, Views], owned: Mapping[str, Owned], values: dict[str, torch.Tensor],
    device: str,
) -> tuple[dict[str, Views], dict[str, torch.Tensor]]:  # fmt: skip
    """(the tensors of each bucket that the rank updates, masters of the weights in half precision), with the first
    weights in them and in what is kept of the buckets."""
    views = {b.name: pieces[b.name] for b in trained} | {name: own.views for name, own in owned.items()}
    for bucket in trained:
        own = None if bucket.keeps(Space.PARAMETER) else owned.get(bucket.name)
        _fill(own.parts if own else bucket.pieces, own.views if own else pieces[bucket.name], values)
    master = {b.name: _master(views[b.name], b.master, device) for b in trained if b.master}
    for bucket in (b for b in trained if b.master):
        own, flat = owned.get(bucket.name), master[bucket.name]
        views[bucket.name] = shaped(flat, views[bucket.name])
        _fill(own.parts if own else bucket.pieces, views[bucket.name], values)
    return views, master


def _leaves(
    held: Sequence[Graph], trained: Mapping[str, torch.Tensor], values: dict[str, torch.Tensor], device: str
) -> dict[str, torch.Tensor]:
    """Constants, buffers and parameters of the graphs by name: those that are `trained`, and copies of all others."""
    leaves = {c.name: constant_of(c, device) for part in held for c in part.constants}
    leaves |= {b.name: values[b.name].detach().clone().to(device) for part in held for b in part.buffers}
    leaves |= trained
    for p in (p for part in held for p in part.parameters if p.name not in trained):
        leaves[p.name] = values[p.name].detach().clone().to(device, getattr(torch, p.tensor.dtype))
    return leaves


def _optimizers(
    graph: Graph, program: Program, task: Task, views: dict[str, Views], owned: Mapping[str, Owned]
) -> dict[str, torch.optim.Optimizer]:
    """One optimizer for each bucket, over its pieces or the part that the rank owns."""
    parts = {name: owned[name].parts if name in owned else program.bucket[name].pieces for name in views}
    names, groups = (
        {name: [part.parameter for part in every] for name, every in parts.items()},
        whole_groups(task, graph),
    )
    return {name: optimizer_of(task, program.update, mine, names[name], groups) for name, mine in views.items() if mine}


def _begun(space: Space, bucket: Bucket, weights: torch.Tensor) -> torch.Tensor:
    """The initial value of a space of a bucket."""
    if space in (Space.ANCHOR, Space.SHARED, Space.SERVED):
        short = space is Space.SHARED and bucket.shared
        return weights.to(getattr(torch, short or bucket.dtype), copy=True)
    return torch.zeros_like(weights)


def _master(views: Views, dtype: str, device: str) -> torch.Tensor:
    """An uninitialised master of the weights in `views`."""
    return torch.zeros(sum(view.numel() for view in views), dtype=getattr(torch, dtype), device=device)


def _fill(parts: Sequence[Part], views: Views, values: dict[str, torch.Tensor]) -> None:
    """Copy the first weights into some parts."""
    for part, view in zip(parts, views, strict=True):
        whole = values[part.parameter].detach()
        view.copy_(rows(whole, part) if isinstance(part, Piece) else elements(whole, part).view(view.shape))


def elements(tensor: torch.Tensor, part: Slice) -> torch.Tensor:
    """The elements of a slice, of a parameter or of a tensor of its shape."""
    return tensor.reshape(-1)[part.start : part.stop]


def rows(tensor: torch.Tensor, piece: Piece) -> torch.Tensor:
    """The rows of a piece, of a parameter or of its gradient."""
    return tensor if piece.stop < 0 else tensor[piece.start : piece.stop]


def counted(weight: torch.Tensor) -> torch.Tensor:
    """What a sum over samples of this weight is divided by: samples that do not count have no gradient."""
    return torch.where(weight == 0, 1, weight)


def shaped(flat: torch.Tensor, like: Views) -> Views:
    """The pieces of a flat tensor of a bucket, in the shapes of `like`."""
    parts = torch.split(flat, [view.numel() for view in like])
    return [part.view(view.shape) for part, view in zip(parts, like, strict=True)]


def constant_of(constant: Constant, device: str) -> torch.Tensor:
    """A graph's constant as a tensor; uninitialised if it has no data."""
    shape = constant.tensor.shape_at()
    dtype = getattr(torch, constant.tensor.dtype)
    if not constant.data:
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.frombuffer(bytearray(constant.data), dtype=dtype).view(shape).to(device)
