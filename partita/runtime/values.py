"""Values that cross between stages: sent from an environment, received in the layout that was captured.

A message holds a value's elements once and densely. A value whose memory is a permutation of its dimensions
(transposed, channels last) is sent and received in the order of its memory, without a copy; others are copied on both
sides.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from partita.graph.tensor import Tensor
from partita.program.instruction import Receive, Send
from partita.runtime.rank import Rank
from partita.runtime.segment import Environment
from partita.runtime.transport import Pending
from partita.units import Seconds


@dataclass
class MessageGroup:
    """Several messages as one. Once all have arrived, their elements are put into the environment as `specs` says."""

    parts: list[Pending]
    environment: Environment = field(default_factory=dict)
    specs: tuple[tuple[str, torch.Tensor, Tensor], ...] = ()
    done: bool = False

    def ready(self) -> bool:
        """Whether `block` would return at once."""
        return self.done or (all(part.ready() for part in self.parts) and self._end())

    def block(self, timeout: Seconds) -> bool:
        """Wait until ready; False if `timeout` seconds passed before."""
        return self.done or (all(part.block(timeout) for part in self.parts) and self._end())

    def _end(self) -> bool:
        self.environment |= {name: shaped(elements, spec) for name, elements, spec in self.specs}
        self.done = True
        return True


def send_values(rank: Rank, act: Send, round: int) -> Pending:
    """Start sending the values of a parcel; they are dropped from the environment unless another Send needs them."""
    environment, parcel = rank.environment(round, act.part), rank.program.parcel[act.bucket]
    to = rank.role.mine(act.to, rank.rank)
    flats = [flat(environment[name], tensor.at(parcel.batch)) for name, tensor in parcel.values]
    for name, _ in () if act.keeps else parcel.values:
        del environment[name]
    return MessageGroup([rank.transport.send(f, to, f"{act.key}.{n}", round) for n, f in enumerate(flats)])


def receive_values(rank: Rank, act: Receive, round: int) -> Pending:
    """Start receiving a parcel; its values are put into the environment once all have arrived."""
    environment, parcel = rank.environment(round, act.part), rank.program.parcel[act.bucket]
    source = rank.role.mine(act.source, rank.rank)
    found, pending = [], []
    for n, (name, tensor) in enumerate(parcel.values):
        spec = tensor.at(parcel.batch)
        elements = torch.empty(sent_once(spec), dtype=getattr(torch, spec.dtype), device=rank.device)
        found.append((name, elements, spec))
        pending.append(rank.transport.receive(elements.view(torch.uint8), source, f"{act.key}.{n}", round))
    return MessageGroup(pending, environment, tuple(found))


def sent_once(spec: Tensor) -> int:
    """Elements of the message: a dimension of stride 0 is sent once."""
    total = 1
    for size, stride in zip(*numbers(spec), strict=True):
        total *= size if stride else 1
    return total


def numbers(spec: Tensor) -> tuple[list[int], list[int]]:
    """(shape, strides) of a spec without symbolic dimensions."""
    shape = [int(d) for d in spec.shape]  # type: ignore[arg-type]
    strides = [int(d) for d in spec.strides]  # type: ignore[arg-type]
    if not strides:
        strides = [1] * len(shape)
        for i in reversed(range(len(shape) - 1)):
            strides[i] = strides[i + 1] * max(shape[i + 1], 1)
    return shape, strides


def memory_order(spec: Tensor) -> list[int]:
    """The dimensions from the slowest to the fastest in memory."""
    shape, strides = numbers(spec)
    return sorted(range(len(shape)), key=lambda d: (-strides[d], d))


def flat(value: torch.Tensor, spec: Tensor) -> torch.Tensor:
    """The elements of a value as bytes, in the order of its captured memory."""
    for d, stride in enumerate(numbers(spec)[1]):
        value = value if stride else value.narrow(d, 0, 1)
    return value.permute(memory_order(spec)).contiguous().view(-1).view(torch.uint8)


def shaped(elements: torch.Tensor, spec: Tensor) -> torch.Tensor:
    """The elements of a message, with the spec's shape and strides."""
    shape, strides = numbers(spec)
    once = [size if stride else 1 for size, stride in zip(shape, strides, strict=True)]
    order = memory_order(spec)
    back = sorted(range(len(order)), key=lambda place: order[place])
    dense = elements.view([once[d] for d in order]).permute(back)
    real = [size > 1 and stride > 0 for size, stride in zip(shape, strides, strict=True)]
    if any(r and have != stride for r, have, stride in zip(real, dense.stride(), strides, strict=True)):
        gaps = torch.empty_strided(once, strides, dtype=elements.dtype, device=elements.device)
        dense = gaps.copy_(dense)
    return dense.expand(shape)
