"""A checkpoint that all ranks write together: rank 0 prepares, each rank writes its shard, rank 0 commits.

rank 0   need?  space, directory   shard   all there: manifest, rename
rank 1   need                      shard
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

from partita.checkpoints.checkpoint import SavePolicy, abandon, begin, commit, place_of
from partita.checkpoints.manifest import Manifest
from partita.checkpoints.shard import File, Shard, write_shard
from partita.transport.messages import gather, spread


def save_shards(shards: Sequence[Shard], keep: SavePolicy, manifest: Manifest) -> None:
    """Write the checkpoint of ranks that share a process. Raises OSError if it could not be written."""
    path = begin(keep.out, manifest.step, sum(shard.size for shard in shards))
    commit(path, manifest, [write_shard(shard, path, rank) for rank, shard in enumerate(shards)], keep.many)


def save_together(
    shard: Shard, keep: SavePolicy, manifest: Manifest, rank: int, writing: Callable[[], AbstractContextManager[None]]
) -> str:
    """Write this rank's part of a checkpoint, in the context `writing`; every rank of the Program must call it. Returns
    why it failed ("": it did not).

    A failed checkpoint leaves no files, and the ones before it stay.
    """
    world, path = manifest.world, place_of(keep.out, manifest.step)
    needs = gather(shard.size, rank, world)
    failed: str = spread("" if rank else _trying(begin, keep.out, manifest.step, sum(needs)), rank, world)
    if failed:
        return failed
    written: dict[str, Any] = {}
    with writing():
        failed = _trying(lambda: written.update(asdict(write_shard(shard, path, rank))))
    reports = gather({"failed": failed, **written}, rank, world)
    if rank == 0:
        failed = next((report["failed"] for report in reports if report["failed"]), "")
        files = [File(r["name"], r["size"], r["sha256"]) for r in reports if not r["failed"]]
        failed = failed or _trying(commit, path, manifest, files, keep.many)
        if failed:
            abandon(path)
    found: str = spread(failed, rank, world)
    return found


def _trying(act: Any, *arguments: Any) -> str:
    try:
        act(*arguments)
    except OSError as error:
        return str(error)
    return ""
