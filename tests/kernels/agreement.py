"""Numbers to encode, and whether a card's kernels of a codec say what the processor's do: messages, what is left, what
is decoded."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from partita.kernels.cards import Pair
from partita.kernels.codecs import kernel_of
from partita.plan.wire import Codec
from partita.wire.codec import room, settings_of

LENGTHS = (1, 2, 7, 8, 9, 63, 4097)
KEYS = (0, 7, 2**31 + 12345)


def named(name: str, **settings: float) -> Codec:
    return Codec(name, settings=tuple(settings.items()))


def numbers(count: int, dtype: torch.dtype = torch.float32, scale: float = 0.02) -> torch.Tensor:
    return torch.randn(count, dtype=dtype, generator=torch.Generator().manual_seed(count)) * scale


def normal(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def disagreements(
    codec: Codec, values: torch.Tensor, pair: Pair, key: int = 7, device: str = "cpu", shift: int = 0
) -> Iterator[str]:
    """What differs, where the card's message begins `shift` bytes behind a multiple of all."""
    kernel, settings, n = kernel_of(codec), settings_of(codec), len(values)
    most = room(codec, n, values.element_size())
    for back in (False, True):
        left, wanted = values.clone(), torch.zeros(most, dtype=torch.uint8)
        used = kernel.encode(left, wanted, key, back)
        there, message = (
            values.to(device, copy=True),
            torch.zeros(shift + most, dtype=torch.uint8, device=device)[shift:],
        )
        found = pair[0](there, message, settings, key, back)
        if (most if found is None else found) != used:
            yield f"{found} bytes instead of {used}"
        if not torch.equal(message[:used].cpu(), wanted[:used]):
            yield f"the message of {n} numbers (back={back})"
        if not torch.equal(there.cpu(), left):
            yield f"what is left of {n} numbers (back={back})"
    for add in (False, True):
        into = numbers(n + 1, values.dtype)[1:].clone()
        there = into.to(device, copy=True)
        kernel.decode(wanted[:used], into, add=add)
        pair[1](message[:used], there, settings, add)
        if not torch.equal(there.cpu(), into):
            yield f"what is decoded of {n} numbers (add={add})"
