"""Signs of life of ranks that nobody watches: a count in the store, which each raises once a second while it lives.

rank 1    1  2  3  killed
rank 0    waits for rank 1 .  .  .  .  .  as long as the run's time limit: rank 1 is missing

Work may take any time before ranks meet, so whoever waits gives up on a silent process, never on a slow one. Workers of
a launcher give none: it sees them end.

With its sign of life a rank may give a word, its last one, which the first rank hears within two seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import torch.distributed as dist

from partita.errors import RunError
from partita.units import Seconds

INTERVAL: Final[Seconds] = 1.0
FOUND: Final = "missing"  # what is found missing, for all who wait


@dataclass
class Words:
    """Mutable: what this rank says, and on the first rank what each other one has said last, once all of the first
    `speakers` ranks have spoken."""

    own: str = ""
    speakers: int = 0
    heard: dict[int, str] = field(default_factory=dict)


@contextmanager
def signs_of_life(rank: int, world: int) -> Iterator[Words]:
    """A context in which the others can tell that this rank of the world lives, once all have met."""
    words = Words()
    if world == 1:
        yield words
        return
    store: Any = dist.distributed_c10d._get_default_store()
    line, over = store.clone(), threading.Event()
    line.add(_name(rank), 1)

    def give() -> None:
        with suppress(RuntimeError):  # the store is gone: whoever needs it says so
            while not over.wait(INTERVAL):
                line.add(_name(rank), 1)
                _exchange(line, words, rank)

    threading.Thread(target=give, name="signs of life", daemon=True).start()
    try:
        yield words
    finally:
        over.set()


@dataclass
class Watch:
    """What one who waits hears of the ranks that have not come; `heard` is by rank its last count, and when that was
    new."""

    store: Any
    heard: dict[int, tuple[int, Seconds]] = field(default_factory=dict)
    looked: Seconds = field(default_factory=time.monotonic)

    def look(self, missing: Iterable[int]) -> None:
        """Once a second, raise RunError if one of the ranks for which somebody waits has been silent for as long as the
        store's time limit."""
        now = time.monotonic()
        if now - self.looked < INTERVAL:
            return
        self.looked, limit = now, self.store.timeout.total_seconds()
        found = [rank for rank in missing if self._silent(rank, now) > limit]
        if found:
            self.store.set(FOUND, ",".join(map(str, found)))
            self._let_hear()
        elif self.store.check([FOUND]):
            found = [int(rank) for rank in self.store.get(FOUND).decode().split(",")]
        if found:
            who = f"rank {found[0]}" if len(found) == 1 else f"ranks {', '.join(map(str, found))}"
            raise RunError(
                f"{who} did not come to where all ranks meet, and gave no sign of life for {limit:.0f} s: killed, or "
                "its machine is gone; look at what it said last",
                rank=found[0],
            )

    def _silent(self, rank: int, now: Seconds) -> Seconds:
        """For how long nothing was heard of a rank, as far as one knows; 0 of one that gives no signs."""
        if not self.store.check([_name(rank)]):
            return 0.0
        count = self.store.add(_name(rank), 0)
        if rank not in self.heard or self.heard[rank][0] != count:
            self.heard[rank] = count, now
        return now - self.heard[rank][1]

    def _let_hear(self) -> None:
        """The first rank stays while the others look once more, for the store may end with it."""
        if dist.get_rank() == 0:
            time.sleep(2 * INTERVAL)


def _exchange(store: Any, words: Words, rank: int) -> None:
    """Give this rank's word; the first one takes the others'."""
    if rank and words.own:
        store.set(f"word/{rank}", words.own)
    names = {other: f"word/{other}" for other in range(1, words.speakers)}
    if rank == 0 and names and (words.heard or store.check([*names.values()])):
        said = store.multi_get([*names.values()])
        words.heard = {other: word.decode() for other, word in zip(names, said, strict=True)}


def _name(rank: int) -> str:
    return f"alive/{rank}"
