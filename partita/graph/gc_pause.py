"""Pauses garbage collection while graphs, programs and curves are built: none of them is dropped in cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_gc() -> Iterator[None]:
    """Python's collector stands still: it would visit all that was made before, again and again (a sixth of a trace,
    two fifths of a search over large pipelines)."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
