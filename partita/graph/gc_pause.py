"""No search for cycles while graphs, programs and curves are made, of which nothing is dropped in cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def growing() -> Iterator[None]:
    """Python's collector stands still: it would visit all that was made before, again and again (a sixth of a trace,
    two fifths of a search over large pipelines)."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
