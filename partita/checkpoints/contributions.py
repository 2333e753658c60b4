"""What a server that does not wait for all workers has of their contributions besides weights, in a checkpoint.

came      how many there were, the minibatches that they are parts of, and how many of these had made steps: these
          count steps of the schedule and of the warm-up
sum       of those that have made no step yet, where one needs several (softsync)
squares   their running mean, by which a correction divides (DC-ASGD)

Workers read the weights anew when a run goes on, so no clock of DynSGD's is open then.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import torch

from partita.checkpoints.entry import ALIKE, of_piece
from partita.checkpoints.lookup import copy_for, rows_of, value_of
from partita.checkpoints.shard import Contents, Shard
from partita.program.instruction import Apply
from partita.program.program import Program, Role
from partita.runtime.owned import Part
from partita.runtime.rank import Rank
from partita.runtime.state import State, shaped

KIND: Final = "served"


def entering(role: Role) -> dict[str, tuple[Apply, int]]:
    """Bucket -> how contributions make steps on it at a server of that role, and how many come in a round."""
    found: dict[str, tuple[Apply, int]] = {}
    for act in role.acts(Apply):
        if not act.delta and not act.drop:
            found[act.bucket] = act, found.get(act.bucket, (act, 0))[1] + 1
    return found


def save_contributions(shard: Shard, rank: Rank) -> None:
    """Add to a shard what this rank has of them."""
    state, program = rank.state, rank.program
    for bucket, (act, _) in entering(rank.role).items():
        parts, came = state.parts(program.bucket[bucket]), state.ledger.merged.get(bucket, 0)
        flats = {"squares": state.squares.get(bucket), "sum": state.gradient[bucket][0] if came % act.need else None}
        for detail, flat in flats.items():
            if flat is not None:
                views = shaped(flat, state.views[bucket])
                shard.tensors |= {of_piece(KIND, p, detail): v for p, v in zip(parts, views, strict=True)}
        counts = {"came": came, "need": act.need, "minibatches": state.ledger.minibatches.get(bucket, 0)}
        counts["stepped"] = state.ledger.stepped.get(bucket, 0)
        shard.values |= {of_piece(KIND, piece, "came"): counts for piece in parts}


def load_contributions(contents: Contents, program: Program, rank: int, state: State, step: int) -> None:
    """Load them into the newly made state of a server, after `step` steps. If the checkpoint has none, as many count as
    workers make in so many steps; a sum of which another number makes a step is left out."""
    for bucket, (act, each) in entering(program.role_of[rank]).items():
        parts = state.parts(program.bucket[bucket])
        saved = value_of(contents, KIND, parts[0], "came", rank, ()) or {}
        came = saved.get("came", step // program.steps * each)
        if any(dict(one.settings).get("decay") for one in act.corrections):
            squares = torch.zeros_like(state.parameter[bucket])
            if _load(contents, "squares", parts, shaped(squares, state.views[bucket])):
                state.squares[bucket] = squares
        whole = saved.get("need") == act.need and came % act.need > 0
        whole = whole and _load(contents, "sum", parts, shaped(state.gradient[bucket][0], state.views[bucket]))
        entered = came if whole else came - came % act.need
        stepped = saved.get("stepped", (came - came % act.need) * act.steps) if saved else entered * act.steps
        state.ledger.merged[bucket], state.ledger.stepped[bucket] = entered, stepped
        state.ledger.minibatches[bucket] = saved.get("minibatches", came * act.steps) if whole else stepped


def _load(contents: Contents, detail: str, parts: Sequence[Part], views: Sequence[torch.Tensor]) -> bool:
    """Copy what the checkpoint has of parts into their `views`; whether it has all of them."""
    found = [
        copy_for(contents, KIND, p.parameter, detail, ALIKE, (), partial(rows_of, contents, KIND, detail, p, view))
        for p, view in zip(parts, views, strict=True)
    ]
    kept = [one for one in found if one is not None]
    if len(kept) < len(views):
        return False
    for view, one in zip(views, kept, strict=True):
        view.copy_(one)
    return True


def left_behind(contents: Contents, program: Program) -> bool:
    """Whether a checkpoint has contributions that have made no step, and make none under a Program."""
    needs = {act.need for role in program.roles for act, _ in entering(role).values()}
    summed = any(entry.detail == "sum" for entry in contents.entries(KIND))
    return summed and {value["need"] for entry, value in contents.values.items() if entry.kind == KIND} != needs
