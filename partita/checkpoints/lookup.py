"""Reading a checkpoint by parameter and rows, whatever the parts in which its tensors were written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch

from partita.checkpoints.entry import ALIKE, Entry
from partita.checkpoints.shard import Contents
from partita.errors import InputError
from partita.runtime.owned import Part, Slice


def copy_for(
    contents: Contents, kind: str, name: str, detail: str, rank: int, wanted: Sequence[int],
    read: Callable[[int], torch.Tensor],
) -> torch.Tensor | None:  # fmt: skip
    """A tensor of the checkpoint for `rank`; None if it has none of that name.

    `wanted` are the ranks that have copies of their own under the new plan (none: all have the same). If these are the
    ranks that wrote copies, each gets its own, by `read(rank)`; otherwise the mean of all copies, or for integers the
    first one.
    """
    owners = contents.ranks(kind, name, detail)
    if not owners:
        return None
    if owners == (ALIKE,) or owners == tuple(wanted):
        return read(ALIKE if owners == (ALIKE,) else rank)
    first, *others = [read(owner) for owner in owners]
    return reduce(torch.add, others, first) / len(owners) if first.is_floating_point() else first


def rows_of(contents: Contents, kind: str, detail: str, piece: Part, view: torch.Tensor, owner: int) -> torch.Tensor:
    """The part `piece` of a parameter (or of its state), in the shape of `view`, put together from the checkpoint's
    parts.

    Raises InputError if the checkpoint does not cover it.
    """
    parts = contents.parts(kind, piece.parameter, detail, owner)
    if not isinstance(piece, Slice) and piece.stop < 0 and len(parts) == 1 and not parts[0].flat and parts[0].stop < 0:
        whole = contents.tensor(parts[0])
        if whole.shape != view.shape:  # torch would repeat a smaller one
            raise InputError(
                f"the checkpoint has {piece.parameter} as {list(whole.shape)}, and it is {list(view.shape)}; take "
                "another one"
            )
        return whole
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
    ordered = [tensor for _, tensor in sorted(found, key=lambda one: one[0])]
    return torch.cat(ordered).view(view.shape) if ordered else view.clone()


def _extent(start: int, stop: int, flat: bool, tensor: torch.Tensor) -> tuple[int, int]:
    """(first, last + 1) element of the parameter that `tensor` holds: rows `start` to `stop` of it (-1: to the end), or
    elements from `start` on if it is `flat`."""
    if flat or stop < 0:
        return start, start + tensor.numel()
    row = tensor.numel() // max(stop - start, 1)
    return start * row, stop * row


def factor_of(contents: Contents, piece: Part, key: str, rank: int, wanted: Sequence[int]) -> Any:
    """Optimizer state that is not element-wise (a step count), from the first saved piece that overlaps `piece`; the
    mean over ranks if these differ."""
    owners = contents.ranks("factor", piece.parameter, key)
    if not contents.has_tensor(_first(contents, "factor", piece, key, owners[0])):
        return value_of(contents, "factor", piece, key, rank, wanted)
    found = copy_for(
        contents, "factor", piece.parameter, key, rank, wanted,
        lambda owner: contents.tensor(_first(contents, "factor", piece, key, owner)),
    )  # fmt: skip
    return None if found is None else found.clone()


def _first(contents: Contents, kind: str, piece: Part, key: str, owner: int) -> Entry:
    """The first saved part that overlaps `piece`."""
    parts = contents.parts(kind, piece.parameter, key, owner)
    if any(part.flat is not isinstance(piece, Slice) for part in parts):
        return parts[0]
    return next((part for part in parts if part.stop < 0 or part.stop > piece.start), parts[-1])


def value_of(contents: Contents, kind: str, piece: Part, key: str, rank: int, wanted: Sequence[int]) -> Any:
    """A value that is no tensor: the rank's own if the `wanted` ranks wrote copies, otherwise the first copy."""
    owners = contents.ranks(kind, piece.parameter, key)
    if not owners:
        return None
    owner = rank if owners == tuple(wanted) else owners[0]
    return contents.values[_first(contents, kind, piece, key, owner)]
