"""A checkpoint that all ranks write together: rank 0 prepares, each rank writes its shard, rank 0 commits.

rank 0   need?  space, directory   shard           all there: losses, manifest, rename
rank 1   need                      shard, losses
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from partita.checkpoints.checkpoint import SavePolicy, abandon, begin, commit, place_of
from partita.checkpoints.losses import Losses, LossFile, append, summed
from partita.checkpoints.manifest import Manifest
from partita.checkpoints.shard import File, Shard, write_shard
from partita.transport.messages import gather, spread


def save_shards(
    shards: Sequence[Shard], keep: SavePolicy, manifest: Manifest, file: LossFile, losses: Losses
) -> LossFile:
    """Write the checkpoint of ranks that share a process, and the losses since the one before; returns the file of
    these. Raises OSError if it could not be written."""
    path = begin(keep.out, manifest.step, sum(shard.size for shard in shards))
    files = [write_shard(shard, path, rank) for rank, shard in enumerate(shards)]
    return _commit(path, manifest, files, keep, file, losses)


def save_together(
    shard: Shard, keep: SavePolicy, manifest: Manifest, rank: int, writing: Callable[[], AbstractContextManager[None]],
    file: LossFile, losses: Losses,
) -> tuple[str, LossFile]:  # fmt: skip
    """Write this rank's part of a checkpoint, in the context `writing`, with its part of the `losses` since the one
    before; every rank of the Program must call it. Returns why it failed ("": it did not), and on rank 0 the file of
    losses as it is then.

    A failed checkpoint leaves no files, and the ones before it stay.
    """
    world, path = manifest.world, place_of(keep.out, manifest.step)
    needs = gather(shard.size, rank, world)
    failed: str = spread("" if rank else _trying(begin, keep.out, manifest.step, sum(needs)), rank, world)
    if failed:
        return failed, file
    written: dict[str, Any] = {}
    with writing():
        failed = _trying(lambda: written.update(asdict(write_shard(shard, path, rank))))
    reports = gather({"failed": failed, "losses": losses, **written}, rank, world)
    if rank == 0:
        failed = next((report["failed"] for report in reports if report["failed"]), "")
        files = [File(r["name"], r["size"], r["sha256"]) for r in reports if not r["failed"]]
        rows = [tuple(row) for report in reports for row in report["losses"]]
        try:
            file = file if failed else _commit(path, manifest, files, keep, file, rows)
        except OSError as error:
            failed = str(error)
        if failed:
            abandon(path)
    return spread(failed, rank, world), file


def _commit(
    path: Path, manifest: Manifest, files: list[File], keep: SavePolicy, file: LossFile, losses: Losses
) -> LossFile:  # fmt: skip
    """Commit a checkpoint once the file of losses has those of its own. Raises OSError, and then neither counts."""
    longer = append(file, summed(losses))
    commit(path, replace(manifest, losses=longer.named), files, keep.many)
    return longer


def _trying(act: Any, *arguments: Any) -> str:
    try:
        act(*arguments)
    except OSError as error:
        return str(error)
    return ""
