"""How tensors move between ranks, as the worker sees it: within one process (`inprocess`), or over torch.distributed
(`processes`)."""

from __future__ import annotations

import zlib
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

import torch

from partita.errors import RunError
from partita.program.space import Kind
from partita.units import Seconds


@runtime_checkable
class Pending(Protocol):
    """Something that a lane waits for."""

    def ready(self) -> bool:
        """Whether `block` would return at once."""

    def block(self, timeout: Seconds) -> bool:
        """Wait until ready; False if `timeout` passed before."""


class BlockingMessage:
    """A message whose other end may go away. Lanes wait for it with `block` only: `ready` would start a thread that
    waits, and a second one that waits for a message of gloo never ends."""

    def ready(self) -> bool:
        """Never called: see above."""
        raise NotImplementedError("a message whose other end may go away must not be polled")


class PeerGone(RunError):
    """The other end of a message is gone."""


@dataclass
class Tags:
    """The tags of messages, of which each end makes the same from a key alone. A tag has 31 bits, so that once in very
    many programs two messages of one pair have the same; `keys` is what each (peer, tag) stands for."""

    keys: dict[tuple[int, int], str] = field(default_factory=dict)

    def of(self, key: str, peer: int) -> int:
        """The tag of a message to or from a peer. Raises RunError where it is that of another one already, for which
        it could be taken."""
        tag = zlib.crc32(key.encode()) & 0x7FFFFFFF
        other = self.keys.setdefault((peer, tag), key)
        if other != key:
            raise RunError(
                f"messages {other} and {key} to or from rank {peer} have the same tag, and could be taken for each "
                "other; change bucket_bytes, which numbers the buckets anew",
                rank=peer,
            )
        return tag


Steps: TypeAlias = Generator[Pending, None, None]  # what goes on whenever the Pending that it yielded is ready


@runtime_checkable
class Transport(Protocol):
    """Moves tensors for one rank. `key` is the same on all ranks that take part, and unique in its Program."""

    @property
    def rank(self) -> int:
        """The rank whose tensors it moves."""

    def collective(
        self, kind: Kind, tensor: torch.Tensor, group: tuple[int, ...], lane: str, key: str, round: int,
        edges: tuple[int, ...] = (),
    ) -> Pending | Steps:  # fmt: skip
        """Start the collective `kind` on `tensor`, in place, among the ranks of `group`. Lanes do not wait for each
        other.

        In a reduce-scatter or all-gather the k-th rank owns the elements edges[k] to edges[k + 1]. A collective of the
        backend's own, such as every all-reduce, is one Pending.
        """

    def send(self, tensor: torch.Tensor, to: int, key: str, round: int) -> Pending:
        """Start sending `tensor`; it must not change before the Pending is ready."""

    def receive(self, tensor: torch.Tensor, source: int, key: str, round: int) -> Pending:
        """Start receiving into `tensor`."""
