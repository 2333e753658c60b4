"""Values that cross between stages: sent from an environment, received in the layout that was captured."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from partita.program.instruction import Receive, Send
from partita.runtime.forms import Form, form_of
from partita.runtime.rank import Rank
from partita.runtime.segment import Environment
from partita.transport.transport import Pending
from partita.units import Seconds


def forms_of(rank: Rank, parcel: str) -> tuple[tuple[str, Form], ...]:
    """The values of a parcel by name, each with its form; worked out once."""
    if parcel not in rank.forms:
        here = rank.program.parcel[parcel]
        rank.forms[parcel] = tuple((name, form_of(tensor, here.batch)) for name, tensor in here.values)
    return rank.forms[parcel]


@dataclass
class MessageGroup:
    """Several messages as one. Once all have arrived, their elements are put into the environment in their forms."""

    parts: list[Pending]
    environment: Environment = field(default_factory=dict)
    came: tuple[tuple[str, torch.Tensor, Form], ...] = ()
    done: bool = False

    def ready(self) -> bool:
        """Whether `block` would return at once."""
        return self.done or (all(part.ready() for part in self.parts) and self._end())

    def block(self, timeout: Seconds) -> bool:
        """Wait until ready; False if `timeout` seconds passed before."""
        return self.done or (all(part.block(timeout) for part in self.parts) and self._end())

    def _end(self) -> bool:
        self.environment |= {name: form.shaped(elements) for name, elements, form in self.came}
        self.done = True
        return True


def send_values(rank: Rank, act: Send, round: int) -> Pending:
    """Start sending the values of a parcel; they are dropped from the environment unless another Send needs them."""
    environment, forms = rank.environment(round, act.part), forms_of(rank, act.bucket)
    to = rank.role.mine(act.to, rank.rank)
    flats = [form.flat(environment[name]) for name, form in forms]
    for name, _ in () if act.keeps else forms:
        del environment[name]
    return MessageGroup([rank.transport.send(f, to, f"{act.key}.{n}", round) for n, f in enumerate(flats)])


def receive_values(rank: Rank, act: Receive, round: int) -> Pending:
    """Start receiving a parcel; its values are put into the environment once all have arrived."""
    environment, forms = rank.environment(round, act.part), forms_of(rank, act.bucket)
    source = rank.role.mine(act.source, rank.rank)
    found, pending = [], []
    for n, (name, form) in enumerate(forms):
        elements = torch.empty(form.elements, dtype=form.dtype, device=rank.device)
        found.append((name, elements, form))
        pending.append(rank.transport.receive(elements.view(torch.uint8), source, f"{act.key}.{n}", round))
    return MessageGroup(pending, environment, tuple(found))
