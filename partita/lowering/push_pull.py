"""One bucket between one worker and a server that does not wait for all workers: a push and a pull by messages, or by
copies on a device that both share.

    apart     worker  T F B P     R | F       P: packed, S: sent, R: into what the worker reads, or its inbox until T
              push          S--
              server          I--  U V D--    U: from its inbox into the server's weights, V: a copy for the worker
    encoded   worker  P E                     E: into a coding, which is sent; X: out of it into the server's inbox
              server          I--  X U V
    local     T F B P ... U V | F             U: from the rank's own DELTA into SERVED, V: into what the worker
                                              reads, once it reads no more, or into its inbox until T
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from partita.lowering.coding import upward
from partita.lowering.samples import Draft
from partita.plan.sync import Payload
from partita.program.instruction import After, Decode, Encode, Instruction, Receive, Send, Snapshot
from partita.program.layout import Coding
from partita.program.space import Space


def tags_of(draft: Draft) -> tuple[str, ...]:
    """The suffix of each push of a round."""
    pushes = len(draft.pushes)
    return tuple(f".{push}" for push in range(pushes)) if pushes > 1 else ("",)


def drops(draft: Draft) -> bool:
    """Whether gradients beyond the first `need` of a step are ignored."""
    return draft.sync.consistency.need > 0 and draft.sync.consistency.late == "drop"


def served_in(draft: Draft, host: int) -> Space:
    """Where a server has its weights: SERVED if a worker on its rank reads others, else PARAMETER."""
    return Space.SERVED if host in draft.workers else Space.PARAMETER


@dataclass(frozen=True, slots=True)
class PushPull:
    """Of bucket `i`, between `worker` and its server on rank `host`. Names of instructions: `made`, `gone`, `came` and
    `read` are what others wait for."""

    draft: Draft
    i: int
    worker: int
    host: int

    @property
    def local(self) -> bool:
        """Whether both are on one rank, so that nothing is sent."""
        return self.worker == self.host

    @property
    def bucket(self) -> str:
        """The bucket's name."""
        return self.draft.buckets[self.i].name

    @property
    def space(self) -> Space:
        """Where the worker has its gradients, or its change of the weights."""
        delta = self.draft.sync.payload is Payload.DELTA
        return Space.DELTA if delta or self.local else Space.GRADIENT

    def made(self, tag: str) -> str:
        """The instruction that makes the worker's contribution ready."""
        if self.draft.sync.payload is Payload.DELTA:
            return f"G{self.i}{tag}"
        if self.draft.graph.clip_norm:
            return f"C{tag}"
        return f"{'W' if self.draft.weight else 'P'}{self.i}{tag}"

    @property
    def coding(self) -> Coding | None:
        """What is sent in place of it, if a codec is for it."""
        return None if self.local else upward(self.draft.sync.wire, self.draft.buckets[self.i])

    def gone(self, tag: str) -> str:
        """The instruction after which that contribution may be overwritten."""
        return f"U{self.i}.{self.worker}{tag}" if self.local else f"{'E' if self.coding else 'S'}{self.i}{tag}"

    def came(self, tag: str) -> str:
        """The instruction after which the server has it."""
        return self.made(tag) if self.local else f"{'X' if self.coding else 'I'}{self.i}.{self.worker}{tag}"

    def encoded(self, tag: str, before: After) -> Iterator[Instruction]:
        """On the worker, once the coding `before` is sent."""
        if self.coding:
            act = Encode(self.bucket, self.coding.name, self.space)
            yield Instruction(f"E{self.i}{tag}", act, "compute", (After(self.made(tag)), before))

    @property
    def read(self) -> str:
        """The instruction after which the worker has the answer."""
        return f"V{self.i}.{self.worker}" if self.local else f"R{self.i}"

    def sent(self, tag: str) -> Iterator[Instruction]:
        """On the worker, once its contribution is ready; nothing where both are on one rank."""
        if not self.local:
            what, space = (self.coding.name, Space.CODED) if self.coding else (self.bucket, self.space)
            act = Send(what, (self.host,), f"{self.bucket}.up{tag}", space)
            ready = After(self.gone(tag) if self.coding else self.made(tag))
            yield Instruction(f"S{self.i}{tag}", act, f"push{self.host}", (ready,))

    def received(self, tag: str, before: str, rounds: int) -> Iterator[Instruction]:
        """On the server, once the inbox is free: the push `before`, so many rounds ago, has entered."""
        free, lane = After(f"U{self.i}.{self.worker}{before}", rounds), f"from{self.worker}"
        name, key = f"I{self.i}.{self.worker}{tag}", f"{self.bucket}.up{tag}"
        if self.coding:
            come = Receive(self.coding.name, (self.worker,), key, Space.CODED)
            read = Decode(self.bucket, self.coding.name, (self.worker,), Space.INBOX)
            yield Instruction(name, come, lane, (After(self.came(before), rounds),))
            yield Instruction(self.came(tag), read, lane, (After(name), free))
        elif not self.local:
            yield Instruction(name, Receive(self.bucket, (self.worker,), key, Space.INBOX), lane, (free,))

    def answered(self, ready: tuple[After, ...]) -> Iterator[Instruction]:
        """On the server: send its weights to the worker, once they are `ready`."""
        i, w, space = self.i, self.worker, served_in(self.draft, self.host)
        if self.local:
            into = Space.INBOX if drops(self.draft) else Space.PARAMETER
            act = Snapshot(self.bucket, w, space, into)
            yield Instruction(f"V{i}.{w}", act, "serve", (self._unread, *ready))
            return
        back = Send(self.bucket, (w,), f"{self.bucket}.down", Space.OUTBOX)
        yield Instruction(f"V{i}.{w}", Snapshot(self.bucket, w, space), "serve", (After(f"D{i}.{w}", 1), *ready))
        yield Instruction(f"D{i}.{w}", back, f"to{w}", (After(f"V{i}.{w}"),))

    def taken(self) -> Iterator[Instruction]:
        """On the worker: receive the answer."""
        if not self.local:
            into = Space.INBOX if drops(self.draft) else Space.PARAMETER
            down = Receive(self.bucket, (self.host,), f"{self.bucket}.down", into)
            yield Instruction(f"R{self.i}", down, f"pull{self.host}", (self._unread,))

    @property
    def _unread(self) -> After:
        """After this the worker no longer needs its previous weights: backward has read them for the last time, or its
        change is made from them, or it has copied them from its inbox."""
        sync, last = self.draft.sync, tags_of(self.draft)[-1]
        if drops(self.draft):
            return After(f"T{self.i}")
        if sync.payload is Payload.DELTA:
            return After(self.made(last))
        return self.draft.spent(self.i, sum(self.draft.pushes) - 1)
