"""What an optimizer steps: adjacent pieces of a bucket as one flat tensor, where its rule is element-wise.

one group    [ fc2.weight   fc2.bias | fc1.weight rows 0..99 | fc1.weight rows 99..   fc1.bias ]   a strip holds STRIP
decay apart  [ fc2.weight | fc2.bias | fc1.weight rows 0..99 | fc1.weight rows 99.. | fc1.bias ]   or one group's

Python takes as long over a small tensor as over a large one, and an element-wise rule does the same to both, bit by
bit. A strip is no longer than its pieces or STRIP ask, since what a rule reads several times should stay in a cache.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from partita.program.strips import strips_of

State = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Strip:
    """What an optimizer knows as one tensor: pieces `start` to `stop` of a bucket, flat where these are several."""

    tensor: torch.Tensor
    start: int
    stop: int


def apart(pieces: Sequence[torch.Tensor]) -> tuple[Strip, ...]:
    """A strip a piece, as an optimizer was made over them."""
    return tuple(Strip(piece, i, i + 1) for i, piece in enumerate(pieces))


def joined(
    optimizer: torch.optim.Optimizer, pieces: Sequence[torch.Tensor], before: Sequence[Strip]
) -> tuple[Strip, ...]:
    """Let an optimizer over the strips `before` step strips as long as groups and what it counts of each piece allow.
    The pieces, in their order, are adjacent parts of one tensor."""
    states, groups = states_of(optimizer, pieces, before), groups_of(optimizer, before)
    kinds = [
        (group, _alike(state, piece) if piece.dim() else i)
        for i, (group, state, piece) in enumerate(zip(groups, states, pieces, strict=True))
    ]
    sizes = [piece.numel() * piece.element_size() for piece in pieces]
    strips = tuple(Strip(_over(pieces[a:b]), a, b) for a, b in strips_of(sizes, kinds))
    _place(optimizer, strips, groups, [_together(states[s.start : s.stop], pieces[s.start : s.stop]) for s in strips])
    return strips


def parted(
    optimizer: torch.optim.Optimizer, pieces: Sequence[torch.Tensor], before: Sequence[Strip]
) -> tuple[Strip, ...]:
    """Let an optimizer over the strips `before` step each piece by itself."""
    states, groups, strips = states_of(optimizer, pieces, before), groups_of(optimizer, before), apart(pieces)
    _place(optimizer, strips, groups, states)
    return strips


def states_of(optimizer: torch.optim.Optimizer, pieces: Sequence[torch.Tensor], strips: Sequence[Strip]) -> list[State]:
    """What an optimizer keeps of each piece, what has as many elements in the piece's shape; of what a strip has once,
    each piece has a copy."""
    found = []
    for strip in strips:
        kept, mine = optimizer.state.get(strip.tensor, {}), pieces[strip.start : strip.stop]
        parts = {key: _parts(value, strip.tensor, mine) for key, value in kept.items()}
        found += [{key: each[k] for key, each in parts.items()} for k in range(len(mine))]
    return found


def groups_of(optimizer: torch.optim.Optimizer, strips: Sequence[Strip]) -> list[int]:
    """The place of each piece's group."""
    place = {id(p): i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}
    return [place[id(strip.tensor)] for strip in strips for _ in range(strip.start, strip.stop)]


def _place(
    optimizer: torch.optim.Optimizer, strips: Sequence[Strip], groups: Sequence[int], states: Sequence[State]
) -> None:
    optimizer.state.clear()
    for i, group in enumerate(optimizer.param_groups):
        group["params"] = [strip.tensor for strip in strips if groups[strip.start] == i]
    for strip, state in zip(strips, states, strict=True):
        if state:
            optimizer.state[strip.tensor] = state


def _over(pieces: Sequence[torch.Tensor]) -> torch.Tensor:
    if len(pieces) == 1:
        return pieces[0]
    return pieces[0].as_strided((sum(piece.numel() for piece in pieces),), (1,))


def _alike(state: State, piece: torch.Tensor) -> Hashable:
    """What pieces of one strip have in common, beside what each has for its elements."""
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
