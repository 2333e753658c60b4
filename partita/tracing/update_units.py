"""Update units: the tensors that an optimizer is given, each one or several adjacent pieces of a bucket.

one parameter group         [ fc2.weight   fc2.bias | fc1.weight rows 0..99 | fc1.weight rows 99..   fc1.bias ]
a group with weight decay   [ fc2.weight | fc2.bias | fc1.weight rows 0..99 | fc1.weight rows 99.. | fc1.bias ]

Each tensor of an optimizer costs the same time in Python, however small it is. An element-wise rule gives the same bits
if several pieces are one flat tensor, so small pieces of a parameter group are joined, up to UNIT_BYTES.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from partita.errors import TaskError
from partita.program.update_units import units_of

State = dict[str, Any]


@dataclass(frozen=True, slots=True)
class UpdateUnit:
    """One `tensor` of an optimizer: the pieces `start` to `stop` of a bucket, flat if these are several."""

    tensor: torch.Tensor
    start: int
    stop: int


def apart(pieces: Sequence[torch.Tensor]) -> tuple[UpdateUnit, ...]:
    """A unit for each piece: those of an optimizer that was made over `pieces`."""
    return tuple(UpdateUnit(piece, i, i + 1) for i, piece in enumerate(pieces))


def joined(
    optimizer: torch.optim.Optimizer, pieces: Sequence[torch.Tensor], before: Sequence[UpdateUnit]
) -> tuple[UpdateUnit, ...]:
    """Rearrange an optimizer over the units `before` so that it updates as few units as possible; returns these.

    Pieces are joined if they are of one parameter group and have equal state that is not element-wise (step counts).
    They must be adjacent parts of one tensor, in this order.
    """
    states, groups = states_of(optimizer, pieces, before), groups_of(optimizer, before)
    kinds = [
        (group, _alike(state, piece) if piece.dim() else i)
        for i, (group, state, piece) in enumerate(zip(groups, states, pieces, strict=True))
    ]
    sizes = [piece.numel() * piece.element_size() for piece in pieces]
    units = tuple(UpdateUnit(_over(pieces[a:b]), a, b) for a, b in units_of(sizes, kinds))
    _place(optimizer, units, groups, [_together(states[s.start : s.stop], pieces[s.start : s.stop]) for s in units])
    return units


def parted(
    optimizer: torch.optim.Optimizer, pieces: Sequence[torch.Tensor], before: Sequence[UpdateUnit]
) -> tuple[UpdateUnit, ...]:
    """Rearrange an optimizer over the units `before` so that each piece is a unit; returns these."""
    states, groups, units = states_of(optimizer, pieces, before), groups_of(optimizer, before), apart(pieces)
    _place(optimizer, units, groups, states)
    return units


def states_of(
    optimizer: torch.optim.Optimizer, pieces: Sequence[torch.Tensor], units: Sequence[UpdateUnit]
) -> list[State]:
    """The optimizer's state of each piece. Element-wise state has the piece's shape; other state of a unit (a step
    count) is copied for each of its pieces."""
    found = []
    for unit in units:
        kept, mine = optimizer.state.get(unit.tensor, {}), pieces[unit.start : unit.stop]
        parts = {key: _parts(value, unit.tensor, mine) for key, value in kept.items()}
        found += [{key: each[k] for key, each in parts.items()} for k in range(len(mine))]
    return found


def groups_of(optimizer: torch.optim.Optimizer, units: Sequence[UpdateUnit]) -> list[int]:
    """The index of each piece's parameter group. Raises TaskError for a piece that the optimizer leaves out."""
    place = {id(p): i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}
    if left := sum(id(unit.tensor) not in place for unit in units):
        raise TaskError(
            f"the optimizer leaves out {left} of {len(units)} parameters that it is given; give it all of them in "
            "Task.optimizer, and set requires_grad = False in the model on those that are not to be trained"
        )
    return [place[id(unit.tensor)] for unit in units for _ in range(unit.start, unit.stop)]


def _place(
    optimizer: torch.optim.Optimizer, units: Sequence[UpdateUnit], groups: Sequence[int], states: Sequence[State]
) -> None:
    optimizer.state.clear()
    for i, group in enumerate(optimizer.param_groups):
        group["params"] = [unit.tensor for unit in units if groups[unit.start] == i]
    for unit, state in zip(units, states, strict=True):
        if state:
            optimizer.state[unit.tensor] = state


def _over(pieces: Sequence[torch.Tensor]) -> torch.Tensor:
    if len(pieces) == 1:
        return pieces[0]
    return pieces[0].as_strided((sum(piece.numel() for piece in pieces),), (1,))


def _alike(state: State, piece: torch.Tensor) -> Hashable:
    """The state that must be equal in all pieces of a unit: names, and values that are not element-wise."""
    return tuple((key, None if _elementwise(value, piece) else _plain(value)) for key, value in sorted(state.items()))


def _plain(value: Any) -> Hashable:
    return (tuple(value.shape), tuple(value.flatten().tolist())) if isinstance(value, torch.Tensor) else repr(value)


def _elementwise(value: Any, tensor: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == tensor.shape


def _together(states: Sequence[State], pieces: Sequence[torch.Tensor]) -> State:
    if len(states) == 1:
        return states[0]
    return {
        key: torch.cat([state[key].reshape(-1) for state in states]) if _elementwise(value, pieces[0]) else value
        for key, value in states[0].items()
    }


def _parts(value: Any, tensor: torch.Tensor, pieces: Sequence[torch.Tensor]) -> list[Any]:
    if len(pieces) == 1:
        return [value]
    if _elementwise(value, tensor):
        parts = torch.split(value, [piece.numel() for piece in pieces])
        return [part.view(piece.shape) for part, piece in zip(parts, pieces, strict=True)]
    return [value.clone() if isinstance(value, torch.Tensor) else value for _ in pieces]
