"""Calls of torch operators: as they are recorded, and by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


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


def call_of(target: str) -> Any:
    """`'aten.mm.default'` -> the torch operator; None where this torch has no such one."""
    found: Any = torch.ops
    for part in target.split("."):
        found = getattr(found, part, None)
    return found
