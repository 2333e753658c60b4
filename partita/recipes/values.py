"""The values that a recipe's knobs allow, in a word each, as `partita recipes NAME` lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

from partita.lowering.mixing_matrices import MIXING
from partita.plan.sync import DIRECTIONS
from partita.recipes.pipeline import BALANCES
from partita.wire.algorithms import ALGORITHMS, AUTO, BACKEND, STREAMS
from partita.wire.codec import SPECS

# Of knobs that take a text: what may stand there; plugins add to some.
TEXTS: Final[Mapping[str, Callable[[], Iterable[str]]]] = {
    "balance": lambda: BALANCES,
    "codec": lambda: ("none", *SPECS),
    "collective": lambda: (BACKEND, AUTO, *ALGORITHMS, *STREAMS),
    "direction": lambda: DIRECTIONS,
    "layers": lambda: ("all", "a pattern of names"),
    "neighbours": lambda: MIXING,
}


def values_of(knob: str, default: Any) -> tuple[str, ...]:
    """The words that a knob of this default allows; empty for a number, and for a text of a plugin's recipe."""
    if isinstance(default, bool):
        return ("false", "true")
    if isinstance(default, StrEnum):
        return tuple(type(default))
    return tuple(TEXTS[knob]()) if isinstance(default, str) and knob in TEXTS else ()
