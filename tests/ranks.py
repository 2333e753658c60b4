"""Ranks of a script: one interpreter imports what they need, which takes longer than what they do, and forks."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable


def forked(main: Callable[[int], None], world: int) -> None:
    """Carry out `main(rank)` in a process for each rank, and leave with 0 if all of them end well."""
    children = []
    for rank in range(world):
        child = os.fork()
        if not child:
            try:
                main(rank)
                code = 0
            except BaseException:
                traceback.print_exc()
                code = 1
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        children.append(child)
    ends = [os.waitpid(child, 0)[1] for child in children]
    sys.exit(any(ends))
