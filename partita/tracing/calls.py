"""A call of an ATen operator, as it is recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class AtenCall:
    """One ATen call. `sequence` joins a forward call to the autograd node that differentiates it (-1: none)."""

    function: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    result: Any
    backward: bool
    sequence: int
    module: str
    source: str
