"""What a server knows of its versions while it runs. Mutable, private to one rank of one run."""

from __future__ import annotations

from dataclasses import dataclass, field

from partita.program.instruction import Apply
from partita.program.ledger import LOST, Merge


@dataclass
class Ledger:
    """`version` of each bucket, the version that each peer has `read`, the `turns` that it has had, and all
    merges at rank `at`; none where it is `blind`, since other processes change the same without telling."""

    at: int = -1
    version: dict[str, int] = field(default_factory=dict)
    read: dict[tuple[str, int], int] = field(default_factory=dict)
    turns: dict[tuple[str, int], int] = field(default_factory=dict)
    merged: dict[str, int] = field(default_factory=dict)
    merges: list[Merge] = field(default_factory=list)
    blind: bool = False

    def merge(self, act: Apply, round: int) -> bool:
        """Enter a contribution; whether it completes a version. Where late ones are dropped, it is its round's."""
        bucket, worker = act.bucket, act.source
        turn = round if act.drop else self.turns.get((bucket, worker), 0)
        self.turns[bucket, worker] = turn + 1
        read = self.read.get((bucket, worker), 0)
        if not self.blind:
            self.merges.append(Merge(bucket, worker, turn, read, self.version.get(bucket, 0), self.at))
        self.merged[bucket] = self.merged.get(bucket, 0) + 1
        if act.drop or (not act.delta and self.merged[bucket] % act.need):
            return False
        self.step(bucket)
        return True

    def lose(self, bucket: str, worker: int) -> None:
        """What a worker that died would have brought next."""
        turn, read = self.turns.get((bucket, worker), 0), self.read.get((bucket, worker), 0)
        self.merges.append(Merge(bucket, worker, turn, read, LOST, self.at))

    def step(self, bucket: str) -> None:
        """There is a new version."""
        self.version[bucket] = self.version.get(bucket, 0) + 1

    def give(self, bucket: str, worker: int) -> None:
        """The worker gets the version that there is now."""
        self.read[bucket, worker] = self.version.get(bucket, 0)
