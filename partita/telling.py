"""Who hears in sentences how something long goes: a `tell`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Tell: TypeAlias = Callable[[str], None]


def quiet(sentence: str) -> None:
    """A `tell` that tells nobody."""
