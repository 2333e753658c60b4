"""A codec from outside the package: the sign of each number and one mean of all (Karimireddy et al., ICML 2019).

PARTITA_PLUGINS=examples/own_codec.py partita simulate digits-cnn --cluster lab-4x1g --plan "ddp(codec=scaled_sign)"
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from partita.wire.codec import Spec

if TYPE_CHECKING:
    import torch

Settings = Mapping[str, float]


def size(elements: int, item: int, settings: Settings) -> int:
    """Bytes of a message: a bit for each number, and the mean."""
    return -(-elements // 8) + 4


def encode(values: torch.Tensor, settings: Settings, key: int) -> torch.Tensor:
    """Signs, eight a byte, and the mean of what the numbers are apart from their signs."""
    import torch

    from partita.kernels.plain_bits import bytes_of, packed

    return torch.cat([packed(values >= 0, 1), bytes_of(values.abs().mean().float().reshape(1))])


def decode(message: torch.Tensor, like: torch.Tensor, settings: Settings) -> torch.Tensor:
    """The mean with each number's sign."""
    import torch

    from partita.kernels.plain_bits import numbers, unpacked

    count = like.numel()
    signs = unpacked(message[: -(-count // 8)], 1, count) * 2 - 1
    return signs.to(like.dtype) * numbers(message[-(-count // 8) :], torch.float32).to(like.dtype)


CODECS = {"scaled_sign": Spec("", size, feedback=True, passes=(3.0, 1.0))}
KERNELS = {"scaled_sign": (encode, decode)}
