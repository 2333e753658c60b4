"""Which codecs work on an accelerator, where their tensors lie. All others are staged: they go by the host.

    torch operators, on any       fp16, bf16, powersgd
    Triton's kernels, on CUDA     truncate, q8, fixed, dorefa, dettmers8, terngrad, onebit, topk, dgc, threshold
    staged                        qsgd, inceptionn: a number's place follows from the lengths of all before it
                                  adaptive, adacomp: few use them; plugins

Triton comes with torch's builds for CUDA. Where it is missing, on cards that are older than it wants, for numbers other
than of four or eight bytes and for more of them than 31 bits count, its codecs are staged as well.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, Final

import torch

ANYWHERE: Final = frozenset({"fp16", "bf16", "powersgd"})
TRITON: Final = frozenset(
    {"truncate", "q8", "fixed", "dorefa", "dettmers8", "terngrad", "onebit", "topk", "dgc", "threshold"}
)
OLDEST: Final = (8, 0)  # compute capability that Triton is made for
MOST: Final = 2**31 - 2**16
Pair = tuple[Callable[..., Any], Callable[..., Any]]


def pair_of(name: str, values: torch.Tensor) -> Pair | None:
    """A codec's kernels on a card, of flat numbers, for tensors such as `values`; None where it has none."""
    fits = values.dtype in (torch.float32, torch.float64) and 0 < values.numel() < MOST
    return pairs()[name] if name in TRITON and values.is_cuda and fits and takes(values.device) else None


@cache
def takes(device: torch.device) -> bool:
    """Whether Triton is there, and the card young enough for it."""
    return find_spec("triton") is not None and torch.cuda.get_device_capability(device) >= OLDEST


@cache
def pairs() -> dict[str, Pair]:
    """Those of all codecs that have some. Imports Triton."""
    from partita.kernels.card_chosen import CHOSEN
    from partita.kernels.card_levels import LEVELS

    return {**LEVELS, **CHOSEN}
