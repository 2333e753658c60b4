"""How far the ledger of a run had come, in a checkpoint: its versions and turns are those of the whole run.

version   of a bucket where contributions enter it
turns     of each worker that contributes
read      the version that each of them had read last. One that is tied to a centre, or that meets others, goes on from
          it; whoever has no weights of its own reads anew when a run goes on
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from partita.checkpoints.entry import ALIKE, of_piece
from partita.checkpoints.lookup import value_of
from partita.checkpoints.shard import Contents, Shard
from partita.program.instruction import Apply
from partita.program.program import Program
from partita.runtime.rank import Rank
from partita.runtime.state import State

KIND: Final = "ledger"


def save_ledger(shard: Shard, rank: Rank) -> None:
    """Add to a shard how far the ledger of this rank is."""
    ledger, role = rank.state.ledger, rank.role
    for bucket in dict.fromkeys(act.bucket for act in role.acts(Apply)):
        kept = {
            "version": ledger.version.get(bucket, 0),
            "turns": {worker: turn for (name, worker), turn in ledger.turns.items() if name == bucket},
            "read": {worker: read for (name, worker), read in ledger.read.items() if name == bucket},
        }
        owner = ALIKE if bucket in role.serves else rank.rank
        shard.values |= {of_piece(KIND, p, rank=owner): kept for p in rank.state.parts(rank.program.bucket[bucket])}


def load_ledger(
    contents: Contents, program: Program, rank: int, state: State, own: Mapping[str, tuple[int, ...]]
) -> None:
    """Have the newly made ledger of a rank go on where that of the checkpoint ended. Of a bucket, the workers `own` go
    on with what they had read; others of a server read anew."""
    role, ledger, sources = program.role_of[rank], state.ledger, dict[str, set[int]]()
    for act in role.acts(Apply):
        sources.setdefault(act.bucket, set()).add(act.source)
    for bucket, workers in sources.items():
        piece = state.parts(program.bucket[bucket])[0]
        merging = () if bucket in role.serves else _merging(program, bucket)
        if contents.ranks(KIND, piece.parameter) != (merging or (ALIKE,)):
            continue
        saved = value_of(contents, KIND, piece, "", rank, merging)
        ledger.version[bucket] = saved["version"]
        ledger.turns |= {(bucket, worker): turn for worker, turn in saved["turns"].items()}
        ledger.read |= {(bucket, worker): read for worker, read in saved["read"].items()}
        for worker in workers.difference(own.get(bucket, ())) if bucket in role.serves else ():
            ledger.give(bucket, worker)
    ledger.begin()


def _merging(program: Program, bucket: str) -> tuple[int, ...]:
    """The ranks where contributions enter a bucket."""
    roles = (role for role in program.roles if any(act.bucket == bucket for act in role.acts(Apply)))
    return tuple(sorted(rank for role in roles for rank in role.ranks))
