"""What passes between a worker and a server that goes ahead of it: messages, or copies on a device that both share.

apart     worker  T F B P     R | F       P: packed, S: sent, R: into what the worker reads, or its inbox till T
          push          S--
          server          I--  U V D--    U: from its inbox into what the server has, V: a copy for the worker
at home           T F B P ... U V | F     U: from the rank's own DELTA into SERVED, V: into what the worker reads, once
                                          it reads no more, or into its inbox for itself till T
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from partita.lowering.samples import Draft
from partita.plan.sync import Payload
from partita.program.instruction import After, Instruction, Receive, Send, Snapshot, Space


def tags_of(draft: Draft) -> tuple[str, ...]:
    """What marks each push of a round."""
    fetch = draft.sync.frequency.fetch
    return tuple(f".{push}" for push in range(fetch)) if fetch > 1 else ("",)


def drops(draft: Draft) -> bool:
    """Whether gradients beyond the first `need` of a step are left out."""
    return draft.sync.consistency.need > 0 and draft.sync.consistency.late == "drop"


def served_in(draft: Draft, host: int) -> Space:
    """Where a server has its weights: beside those that its rank's own worker reads, if there is one."""
    return Space.SERVED if host in draft.workers else Space.PARAMETER


@dataclass(frozen=True, slots=True)
class Way:
    """Of bucket `i`, between `worker` and its server on rank `host`."""

    draft: Draft
    i: int
    worker: int
    host: int

    @property
    def home(self) -> bool:
        """Whether nothing travels."""
        return self.worker == self.host

    @property
    def bucket(self) -> str:
        return self.draft.buckets[self.i].name

    @property
    def space(self) -> Space:
        """What the worker has its gradients, or increments, in."""
        delta = self.draft.sync.payload is Payload.DELTA
        return Space.DELTA if delta or self.home else Space.GRADIENT

    def made(self, tag: str) -> str:
        """What the worker's part of a push is ready after."""
        letter = "G" if self.draft.sync.payload is Payload.DELTA else "W" if self.draft.weight else "P"
        return f"{letter}{self.i}{tag}"

    def gone(self, tag: str) -> str:
        """After what it may be written anew."""
        return f"U{self.i}.{self.worker}{tag}" if self.home else f"S{self.i}{tag}"

    def came(self, tag: str) -> str:
        """After what the server has it."""
        return self.made(tag) if self.home else f"I{self.i}.{self.worker}{tag}"

    @property
    def read(self) -> str:
        """After what the worker has its answer."""
        return f"V{self.i}.{self.worker}" if self.home else f"R{self.i}"

    def sent(self, tag: str) -> Iterator[Instruction]:
        if not self.home:
            act = Send(self.bucket, (self.host,), f"{self.bucket}.up{tag}", self.space)
            yield Instruction(f"S{self.i}{tag}", act, f"push{self.host}", (After(self.made(tag)),))

    def received(self, tag: str, free: After) -> Iterator[Instruction]:
        """On the server, once the inbox is `free`."""
        if not self.home:
            act = Receive(self.bucket, (self.worker,), f"{self.bucket}.up{tag}", Space.INBOX)
            yield Instruction(f"I{self.i}.{self.worker}{tag}", act, f"from{self.worker}", (free,))

    def answered(self, ready: tuple[After, ...]) -> Iterator[Instruction]:
        """What the server has goes to the worker, once it is `ready`."""
        i, w, space = self.i, self.worker, served_in(self.draft, self.host)
        if self.home:
            into = Space.INBOX if drops(self.draft) else Space.PARAMETER
            act = Snapshot(self.bucket, w, space, into)
            yield Instruction(f"V{i}.{w}", act, "serve", (self._unread, *ready))
            return
        back = Send(self.bucket, (w,), f"{self.bucket}.down", Space.OUTBOX)
        yield Instruction(f"V{i}.{w}", Snapshot(self.bucket, w, space), "serve", (After(f"D{i}.{w}", 1), *ready))
        yield Instruction(f"D{i}.{w}", back, f"to{w}", (After(f"V{i}.{w}"),))

    def taken(self) -> Iterator[Instruction]:
        """On the worker."""
        if not self.home:
            into = Space.INBOX if drops(self.draft) else Space.PARAMETER
            down = Receive(self.bucket, (self.host,), f"{self.bucket}.down", into)
            yield Instruction(f"R{self.i}", down, f"pull{self.host}", (self._unread,))

    @property
    def _unread(self) -> After:
        """The worker does not need the weights before: backward has read them for the last time, its increment is made
        from them, or it has them from its inbox."""
        sync, last = self.draft.sync, tags_of(self.draft)[-1]
        if drops(self.draft):
            return After(f"T{self.i}")
        if sync.payload is Payload.DELTA:
            return After(self.made(last))
        return self.draft.spent(self.i, sync.frequency.period * sync.frequency.fetch - 1)
