"""Random operators of a segment: keyed by (seed, step, operator, sample) where asked for, torch's own if not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from partita.tracing.draws import keyed_dropout, keyed_random, keyed_uniform

DRAWS: Final = "draws"


@dataclass(frozen=True, slots=True)
class Draws:
    """What the keyed numbers of an environment depend on, besides the operator."""

    seed: int
    step: int
    samples: tuple[int, ...]

    def uniform(self, shape: torch.Size, key: int, along: int) -> torch.Tensor:
        return keyed_uniform(shape, self.seed, self.step, key, self.samples, along=along)


def dropout(
    env: dict[str, Any], value: torch.Tensor, probability: float, key: int, *, along: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    draws: Draws | None = env[DRAWS]
    if draws is None:
        dropped, mask = torch.ops.aten.native_dropout.default(value, probability, True)
        return dropped, mask
    return keyed_dropout(value, probability, draws.uniform(value.shape, key, along))


def random(
    env: dict[str, Any], key: int, target: str, *arguments: Any, along: int = 0, **keywords: Any
) -> torch.Tensor:
    function: Any = torch.ops
    for part in target.split("."):
        function = getattr(function, part)
    made: torch.Tensor = function(*arguments, **keywords)
    draws: Draws | None = env[DRAWS]
    return made if draws is None else keyed_random(target, arguments, made, draws.uniform(made.shape, key, along))


DRAWING: Final[dict[str, Callable[..., Any]]] = {"partita.dropout": dropout, "partita.random": random}
